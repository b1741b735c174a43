"""A replica: a metadata log and the state that follows from it.

- `replica`: both together, as leaders and followers use them; `appending`: appends to a local log
  and applies, both in the log's thread
- `state_recovery`: opening the state: trust it, or make it anew; `read_ahead`: the log, read ahead
  of the replica that applies it
- `read_only_replica`: finds batches in the replica of another process; `read_only_state`: its file;
  `follower_answers`: what a replica may answer that may not have read everything
- `snapshots`, `snapshot_format`: snapshots in the store; their bytes
- `verify`: log against state against snapshots; `verify_transactions`: rows about transactions
"""
