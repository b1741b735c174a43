"""Questions to the committed state, each on one read transaction in a reader thread.

- `batch_queries`: where the bytes of a partition are; `offset_queries`: what ListOffsets asks
- `file_queries`: accounts of WAL objects; `segment_queries`: segments to rewrite, or to name
- `group_queries`: consumer groups and their offsets
- `transaction_queries`: transactional ids; `transaction_rows`: transactions of a partition, for its
  readers; `described_producers`: the same for administrators
- `sink_rows`: what is committed of staged objects
"""
