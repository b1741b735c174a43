"""Brokers, whole or in parts, in the test's process and in others.

- `batch_reader_setting`: A batch reader over a real chunk directory, a real object cache and a
  store in memory.
- `broker_cluster`: Brokers on one bucket, as processes, with the metadata log in the object
  store.
- `broker_racks`: A cluster of broker processes in racks, what its clients are told, and what it
  has committed.
- `fake_logs`: Topics and their logs in memory, which fail and wait as a test says.
- `gate`: A way to a port that can be cut, held and opened again, as a network does.
- `killed_workers`: Processes of a broker of workers, and a ledger of what is acknowledged while
  some are killed.
- `listeners`: Listeners of tests, each on a free port of the loopback address.
- `replica_setting`: A replica manager on a write loop, a coordinator and a reader that do what
  a test says.
"""
