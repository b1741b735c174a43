"""Groups of the classic protocol: members join and sync, and one of them assigns.

- `classic_group`: the state machine: what each request may do
- `rebalance`, `classic_roster`: its phases and timers; its members and what they agree on
- `subscription`: what members say to each other about topics
"""
