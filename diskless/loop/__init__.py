"""Work on the event loop that keeps nobody waiting.

- `long_work`: long work a slice at a time; `long_rows`: lists that are let go of a portion at a
  time
- `turns`: turns of connections: a little of each one's work at a time
- `backlog`: whether a client asks for so much that others come first
- `read_turns`: few clients with a backlog read at a time
- `purgatory`: where delayed operations wait for their condition or their deadline
- `early_end`: a wait that ends because somebody waits behind it
- `fair_workers`: jobs in threads, a few at a time, clients in turn
- `loop_watch`: how late the loop serves, and who held it
"""
