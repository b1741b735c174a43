"""What consumer groups cost.

- `groups`: commits of offsets, and the parts of the group put together
- `rebalance`, `consumer_rebalance`: many members share out many partitions, by either protocol
"""
