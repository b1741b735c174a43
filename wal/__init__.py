"""Ground floor: record batches, chunk files, WAL objects, object stores, caches.

Bytes and files only. Nothing here knows what a topic's name, a coordinator or a Kafka request is;
what a lower layer needs from above arrives as an argument typed by a small `Protocol`.

Folders, each importing only those above it:

- `security`: secrets, and the keys and contexts of TLS
- `wire`: values as bytes: primitive types, and layouts made of them
- `stores`: the contract of an object store, and who keeps it
- `caches`: bytes of objects that were read lately, or will be soon
- `segmented_log`: an append-only log on local files
- `records`: one record batch: checked, opened, packed anew
- `chunks`: receive buffers, chunk files and WAL objects: their formats, and what reads them
- `write_path`: the tasks that bring batches into chunks, and chunks into the store
- `staging`: WAL objects that others than brokers write

What all of them use stands here. Doors: `clock`, `steady_clock` (never jumps ahead), `disk`,
`worker_threads`. Values: `coordinates` (names for places), `batch_extents` (the batches of a WAL
object, over `columns` of numbers), `ulid` (object keys), `crc`, `errors` (the one tree of errors).
Tools: `settings` (a section of the configuration), `failpoint` (named
crash points), `fd_cache` (open files), `inflation_budget` (memory for what is inflated),
`private_copy`.
"""
