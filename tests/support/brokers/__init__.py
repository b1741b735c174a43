"""Brokers, whole or in parts, in the test's process and in others.

- `batch_reader_setting`: A batch reader over a real chunk directory, a real object cache and a
  store in memory.
- `broker_cluster`: Brokers on one bucket, as processes, with the metadata log in the object
  store.
- `broker_racks`: A cluster of broker processes in racks, what its clients are told, and what it
  has committed.
- `fake_logs`: Topics and their logs in memory, which fail and wait as a test says.
- `gate`: A way to a port that can be cut, held and opened again, as a network does.
- `kafka_fakes`: In-memory stand-ins for what the API handlers call, good enough for stock
  clients.
- `killed_workers`: Processes of a broker of workers, and a ledger of what is acknowledged while
  some are killed.
- `listeners`: Listeners of tests, each on a free port of the loopback address.
- `live_broker`: A whole broker in a thread of the test process, on a real socket, for blocking
  clients.
- `produced`: Produce requests as handlers give them on: made of bytes on the wire, and read by the
  decoder.
- `replica_setting`: A replica manager on a write loop, a coordinator and a reader that do what
  a test says.
- `server_tests`: What tests of the server share: both event loops, and an API that nobody else
  has.
"""
