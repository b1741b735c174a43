"""The clients by which brokers ask the coordinators, wherever these are led.

- `coordinator_client`: the protocol: one method for all operations, and its short forms
- `local_client`, `wire_client`: the coordinators led here; over a socket
- `sasl_login`: how the latter logs in
- `routed_client`: all of them, each request to whom it concerns
- `finding`: batches of many partitions, and what is newer; `near_replicas`: in the replicas of
  another process of this host
- `shares`: one request, divided among several; `file_shares`: a commit of several files
- `feed_connections`: how followers of a metadata log ask its leader
- `effects`: when a change is in this broker's catalogue too
- `topic_changes`: creating and deleting topics, at the catalogue and the other coordinators
- `produce_gateways`: which brokers producers should write to
"""
