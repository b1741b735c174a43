"""The TCP server: connections, frames, memory, and who is cut off.

- `server`: its connections: counts, sweeps, stops cleanly. Read this first.
- `connection`: one connection, from bytes in to bytes out; its parts, each without a socket:
  `receiving`: frames; `handlers`: from a request to its answer; `responses`: answers in order;
  `throttle`: until when it is muted
- `shared`: what all connections of a server have in common
- `registry`: what a handler is
- `memory_budget`: a limit, and whose share is what; `request_budget`, `response_budget`: memory of
  requests and of answers in the whole broker
- `unread`: clients that do not read their answers
- `problem_log`: log lines that clients cause; `server_metrics`: what is counted
- `server_settings`: the section of the configuration
"""
