"""The coordinator of KIP-1164: metadata log, record types, SQLite state, offset assignment.

Folders, each importing only those above it:

- `scram`: proofs of passwords, and what is stored to check them
- `records`: the types of metadata records, and their bytes
- `log`: a metadata log on local disk or in an object store
- `state`: the SQLite file that follows from the log, and questions to it
- `apply`: records become rows
- `replica`: log and state together; snapshots; recovery
- `rules`: what is decided on the state, without I/O
- `leadership`: who should lead which metadata partition, and how it gets there
- `workers`: what a leader does by itself, again and again
- `messages`: the operations as bytes between brokers
- `rebuild`: a new metadata log from what the bucket holds
- `coordinator`: the pipeline: decide, append, apply, answer
- `clients`: how brokers ask the coordinators

What all of them use stands here: `operations` (the coordinator's operations as values), `rewrites`,
`table_operations`, `sink_operations`, `transaction_operations` and `feed_operations` (those about
rewriting segments, about tables, sinks, transactions, and followers of a log), `acls`,
`access_tokens`, `batch_commits` (the answers to a commit as columns), `metadata_settings`,
`retention_settings`, and `metadata_version`.
"""
