"""Event loops whose time a test moves, and waiting on real ones.

- `manual_loop`: As much of an event loop as timers need, whose time is a test's clock.
"""
