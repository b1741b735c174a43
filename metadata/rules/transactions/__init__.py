"""What becomes of transactional ids and transactions, as functions over the speculative view.

- `producers`: which producer a transactional id has, and which ids are forgotten;
  `producer_pairs`: whether a producer is that one
- `growing`: what belongs to the open transaction
- `ending`: how a transaction ends; `parts`: its end in partitions and groups
"""
