"""The coordinator's operations as bytes: KIP-1164's, and those between brokers beside it.

- `codec`: what all messages have in common
- `coordinator`, `commit_file`, `find_batches`: KIP-1164's operations
- `brokers`, `quotas`, `segments`: registration and the like; client quotas; those of a tiering job
- `errors`: our errors as Kafka's codes, and back
"""
