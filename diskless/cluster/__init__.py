"""The other brokers: who they are, and which of them clients are sent to.

- `cluster`, `membership`: what clients are told; how brokers register and know of each other
- `presence`: whom clients are told of, and whom they are sent to, while brokers come and go
- `ended_brokers`: whose process has ended, and who leaves the cluster for it
- `reachable`: the brokers as the clients of one listener reach them
- `produce_routing`, `reader_routing`, `client_rack`: which broker producers and consumers are sent
  to, by the rack they are in
"""
