"""Chunk files and WAL objects: what lies on the disk and in the store, and how it is read back.

- `buffer`: reference-counted fragments between socket and disk
- `chunk`: the two files of one chunk; `chunk_scan`: reads them back; `batch_rows`: a row
  for each batch; `chunk_batches`: many batches by their rows; `checked_reads`: their bytes
- `chunk_directory`: all chunks of a broker, their recovery, and files that serve again;
  `sealed_chunk`: one that takes no more appends; `quarantine`: chunks with damage
- `wal_object`: an object's bytes; `laying_out`: which object a chunk becomes
- `object_notes`, `kept_notes`: what objects tell of others for a rebuild; notes that outlive their
  objects
- `wal_settings`: the `wal.*` section of the configuration
"""
