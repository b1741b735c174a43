"""The coordinator without a broker: `make bench BENCH=coordinator`.

- `commits`: commits and look-ups, alone and together
- `retention`: a commit while a million rows are deleted
- `starts`: what a million batches weigh, and how soon a broker is up with them
- `files`, `state`: WAL objects to commit; a state with millions of batches
"""
