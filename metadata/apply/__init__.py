"""Records become rows: the one code path of live operation and replay.

- `apply`: one `match` over the record types. Read this first.
- `transaction`: the ledger: one SQLite transaction, the image's changes, the state hash
- `apply_topics`, `apply_segments`, `apply_commit`, `apply_control`, `apply_groups`, `apply_users`,
  `apply_rewrites`, `apply_tables`, `apply_sinks`, `apply_transactions`: what each kind of record
  does; commits and groups in bulk. `apply_few`: a commit of few batches
- `apply_deletions`: deleting rows, and what follows from it
"""
