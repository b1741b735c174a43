"""Transactions: who may write in them, what belongs to them, and how they end everywhere.

- `transaction_router`: which coordinator a transactional id has; `transaction_coordinator`: the
  transactional ids of one metadata partition, at its leader
- `transaction_numbers`: asks coordinators which transaction a batch or an offset belongs to
- `settings`, `errors`: limits and times; what a coordinator refuses

What is decided about transactions is decided in `metadata/`: metadata/transaction_operations.py has
the words.
"""
