"""What the state keeps of transactions in memory.

- `overlay`: what pending operations have written; not of transactions alone
- `transaction_image`: committed; `transaction_view`: with what is pending
- `transitions`: what records make of a transactional id
"""
