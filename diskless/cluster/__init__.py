"""The other brokers, and the coordinators led here.

- `coordinators`: the metadata partitions of one broker, their workers and clients
- `cluster`, `membership`: what clients are told; how brokers register and know of each other
- `produce_routing`, `reader_routing`, `client_rack`: which broker producers and consumers are sent
  to, by the rack they are in
"""
