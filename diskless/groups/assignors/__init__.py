"""The assignors: they decide who gets which partitions.

- `assignment`: what assignors are given and give; `assignors`: which there are
- `uniform_assignor`, with `fair_shares` for its counts; `range_assignor`
- `partition_sets`: sets of partitions by topic
"""
