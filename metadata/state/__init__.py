"""The SQLite state: tables, file, connections, hash, and questions to it.

- `schema`: the tables and the prepared SQL. Read this first.
- `state`: the database, its connections and threads; `state_engines`: how SQLite opens it and what
  its errors mean; `engines`: what all engines of SQLite files share; `state_file`: copying the
  file, and knowing it again after a clean stop
- `state_hash`: the rolling hash over all rows; `state_check`: checking all of it before it is
  served
- `image`: the committed state in memory; `speculative`: the state as it will be when everything
  pending is durable. `transactions`: a folder: the parts of both that are about transactions
- `producer_state`, `producer_rows`: Kafka's rules for idempotent producers; their states as rows
- `commit_answer`: the answer to a commit, as it is stored
- `queries`: a folder: questions to the committed state
"""
