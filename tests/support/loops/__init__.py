"""Event loops whose time a test moves, and waiting on real ones.

- `manual_loop`: As much of an event loop as timers need, whose time is a test's clock.
- `until`: Waiting for what has no event to wait on, on the loop alone.
- `virtual_loop`: An event loop whose time passes only when nothing is left to do, and then at
  once.
"""
