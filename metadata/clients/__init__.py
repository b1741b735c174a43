"""How brokers ask the coordinators, wherever these are led.

- `coordinator_client`: the protocol
- `local_client`, `wire_client`: the coordinators led here; over a socket
- `routed_client`: all of them, each request to whom it concerns
- `produce_gateways`: which brokers producers should write to
"""
