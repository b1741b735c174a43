"""The write path on disk: buffered batches become chunk files, and chunk files WAL objects.

- `buffer`: reference-counted fragments between socket and disk
- `write_loop`: the one task that appends to chunks; `seal_policy`: when it seals one
- `chunk`: the two files of one chunk; `chunk_scan`: reads them back; `batch_rows`: a row
  for each batch; `chunk_batches`: many batches by their rows, and their bytes
- `chunk_directory`: all chunks of a broker, their recovery, and files that serve again;
  `sealed_chunk`: one that takes no more appends; `quarantine`: chunks with damage
- `uploader`: sealed chunks into the store, then to the coordinator
- `wal_object`: an object's bytes
- `object_notes`, `kept_notes`: what objects tell of others for a rebuild; notes that outlive their
  objects
- `wal_settings`: the `wal.*` section of the configuration
"""
