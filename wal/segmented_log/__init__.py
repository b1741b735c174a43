"""An append-only log of records on local files; the local metadata log is one.

- `segmented_log`: appends, reads, drops from either end
- `log_file`: one file of it; `log_file_store`, `log_file_index`: the two halves of that
- `log_directory`: the directory they lie in, and its lock
"""
