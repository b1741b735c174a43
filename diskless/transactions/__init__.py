"""Transactions: who may write in them, what belongs to them, and how they end everywhere.

- `transaction_router`: which coordinator a transactional id has; `transaction_coordinator`: the
  transactional ids of one metadata partition, at its leader
- `transaction_ends`: tells coordinators of partitions and groups how transactions end
- `transaction_numbers`: asks coordinators which transaction a batch or an offset belongs to;
  `numbered_batches`: asks it for the batches of a Produce request
- `call_lanes`: one call at a time to each coordinator, for both
- `settings`, `errors`: limits and times; what a coordinator refuses; `state_names`: Kafka's

What is decided about transactions is decided in `metadata/`: metadata/transaction_operations.py has
the words.
"""
