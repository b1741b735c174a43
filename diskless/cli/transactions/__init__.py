"""`diskless transaction`: looking at transactions, and aborting them.

- `transaction_commands`: what the commands take
- `transaction_client`: what they ask a broker
- `transaction_tables`: what they show
"""
