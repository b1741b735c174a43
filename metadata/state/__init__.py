"""The SQLite state: tables, file, connections, hash, and questions to it.

- `schema`: the tables and the prepared SQL. Read this first.
- `state`: the database, its threads and transactions; `state_connections`: how its file is opened,
  and what SQLite's errors mean; `engines`: what engines of all SQLite files share; `state_file`:
  copying the file, and knowing it again after a clean stop
- `state_hash`: the rolling hash over all rows; `state_check`: checking all of it before it is
  served
- `image`: the committed state in memory; `speculative`: the state as it will be when everything
  pending is durable. `transactions`: a folder: the parts of both that are about transactions
- `producer_state`, `producer_rows`: Kafka's rules for idempotent producers; their states as rows
- `commit_answer`: the answer to a commit, as it is stored
- `queries`: a folder: questions to the committed state
"""
