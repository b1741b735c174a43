"""Transactions over several coordinators, their model, and storms of them.

- `applied_transactions`: Records of a transaction as a partition applies them, and whether its
  state is sound after.
- `committed_values`: A producer whose transactions end one way or the other, and the values
  that it committed.
- `held_numbers`: Numbers of transactions, which a test gives when it wants to.
- `memory_transactions`: Transactional ids in a dictionary, for what stands above them; they
  have few rules.
- `transaction_cluster`: Brokers in one process, each leading some of the metadata partitions,
  and their transactions.
- `transaction_model`: What a coordinator must answer about transactional ids, in plain dicts;
  operations one by one.
- `transaction_rules`: Operations about transactional ids at random, each compared with
  transaction_model.
- `transaction_storm`: Random transactions over the coordinators of several logs, and what must
  be true of their logs.
"""
