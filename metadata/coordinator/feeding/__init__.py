"""Leaders of metadata partitions feed those that follow them.

- `feeds`: at the leader: answers followers that wait, and knows who is fed
- `feed`: at a follower: asks the leader, and knows whether it was heard of
"""
