"""The tasks of the write path: batches into chunks, chunks into the store and to the coordinator.

- `write_loop`: the one task that appends to chunks; `seal_policy`: when it seals one;
  `chunk_thread`: what it does in its thread
- `uploader`: sealed chunks into the store, in parallel, then to the coordinator, in order
- `early_puts`: objects that are stored, or begun to be, before the uploader has their chunks;
  `growing_object`: the body of one that is put while its chunk fills
"""
