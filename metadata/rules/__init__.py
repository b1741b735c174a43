"""The coordinator's decisions, as functions of the state and a request; no I/O of their own.

- `commit_request`, `commit`: a commit: checked, decided; `commit_rows` has the rule for its
  batches, `commit_columns` the same for many at once
- `typed`: which typed columns a topic has
- `topics`, `quotas`, `users`, `acls`, `brokers`, `groups`: topics and partitions; quotas of
  clients; SCRAM credentials and access tokens; rules of access control; which brokers there are;
  which coordinator a consumer group has
- `files`: what comes next for a WAL object; `segments`: segments planned and committed;
  `rewriting`: a folder: segments merged and compacted
- `tables`: where the pointer of a table goes, and which segments it may still name
- `sinks`: a folder: batches of sinks that stage objects
- `transactions`: a folder: producers of transactional ids, what their transactions hold, their ends
- `retention`: which records are old enough
"""
