"""Listeners: their names and addresses, and what accepts connections on them.

- `endpoints`: NAME://host:port; `listener_settings`: the section of the configuration
- `listeners`: from the configuration to bound sockets, or to the line that says what is wrong
- `connection_limits`: who may connect; `acceptor`: accepts who may
"""
