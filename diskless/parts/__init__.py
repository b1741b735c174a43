"""The parts of a broker, each made by one step of its start from the parts before it.

In the order in which `diskless.broker` makes them:

- `foundation`: what the broker was given, its data directory, address and health checks
- `storage`: the object store, and what is cached and buffered in this process
- `tokens`: the tokens of an authorization server, if any are taken
- `coordination`: the metadata partitions followed or led here, and what is read from them;
  `leader_workers`: what runs beside a leader; `peers`: how the other brokers are reached
- `write_path`: from a produced batch to a committed WAL object
- `read_path`: from an offset to bytes, and the replica manager, which uses both paths
- `logins`: how clients log in, and the first user
- `service`: which APIs are served, and the server
- `web`: who has rights on the HTTP port

`broker_parts` has them all; `background` runs a task until the stop; `coordination_metrics` are
read from `coordination`. `process_parts` says what the paths need, in whatever process they are.

A step takes the parts that it needs, so the order cannot be wrong. No part changes once it is made.
What a step opens it pushes on the broker's one stack, which closes everything in reverse.
"""
