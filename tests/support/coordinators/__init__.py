"""Coordinators, the models that they are compared with, and the worlds that they live in.

- `applied_state`: A metadata partition's SQLite state and image, fed with records by hand.
- `conformance_bench`: Coordinators under test: on either metadata log, through either client,
  one or several of them.
- `conformance_life`: One life of a broker's coordinators, which ends as a test says.
- `contender`: A process's share of one metadata partition, several of which can share one
  object store.
- `coordinator_bench`: A running coordinator over an in-memory metadata log, and short ways to
  talk to it.
- `coordinator_machine`: Operations of a coordinator at random, each compared with a model in
  plain dicts.
- `coordinator_model`: What a coordinator must answer, worked out in plain dicts with an entry
  for every record.
- `coordinator_worlds`: A coordinator with all that can be taken away from it: log, local state,
  process, rivals.
- `file_cluster`: Coordinators whose workers hand files over to each other, on one object store
  and one clock.
- `file_ledger`: A world of files for property tests: coordinators that decide by the real rules
  and keep their rows in dictionaries, a bucket, clocks that disagree, and a script of what
  happens in between.
- `large_state`: A coordinator's SQLite state with many committed batches, as fast as rows can
  be written.
- `named_rows`: The rows of a state, as two states with other surrogate keys can be compared.
- `orphan_scene`: A cluster, a store with troubles, and scanners that look for what nobody
  committed.
- `pauses`: How long a worker pauses between what it does.
- `standalone_coordinator`: A coordinator alone with its replica and log, without roles, workers
  or clients.
"""
