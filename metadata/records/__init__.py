"""The types of metadata records, and their bytes.

- `records`: topics, partitions, segments; the frame of all. `control`: leadership, assignment,
  ownership, brokers, quotas. `groups`: consumer groups. `acls`: rules of access control. `users`:
  what is stored of passwords
- `rewrites`: segments that are merged or compacted
- `tables`: the pointers of tables, and as they are stored: `stored_tables`
- `sinks`: the last batches of sinks that stage objects. `transactions`: what becomes of them
- `file_committed`: the large one, column by column, with `columns` for its integers
- `segment_identity`: when two segments are the same
"""
