"""The write path on disk: buffered batches become chunk files, and chunk files WAL objects.

- `buffer`: reference-counted fragments between socket and disk
- `write_loop`: the one task that appends to chunks, and when they rotate
- `chunk`: the four files of one chunk; `chunk_directory`: all chunks of a broker, and their
  recovery; `chunk_spares`: files that serve again
- `uploader`: sealed chunks into the store, then to the coordinator
- `wal_object`: an object's bytes; `time_index`: what is known of the timestamps in one of its
  extents
- `object_notes`, `kept_notes`: what objects tell of others for a rebuild; notes that outlive their
  objects
- `wal_settings`: the `wal.*` section of the configuration; `dump`: chunks and objects for people
"""
