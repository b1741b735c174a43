"""An append-only log of records on local files; the local metadata log is one.

- `segmented_log`: appends, reads, drops from either end
- `segment_store`, `segment_index`: the two files of a segment
- `log_directory`: the directory they lie in, and its lock
"""
