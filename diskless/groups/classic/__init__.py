"""Groups of the classic protocol: members join and sync, and one of them assigns.

- `classic_group`: the state machine
- `subscription`: what members say to each other about topics
"""
