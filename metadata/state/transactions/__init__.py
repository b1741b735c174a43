"""What the state knows of transactions.

- `overlay`: what pending operations have written; not of transactions alone
- `transaction_image`: committed, in memory; `transaction_view`: with what is pending
- `transitions`: what records make of a transactional id
- `transaction_queries`: questions to SQLite; `transaction_rows`: those of readers of partitions;
  `described_producers`: those of administrators
"""
