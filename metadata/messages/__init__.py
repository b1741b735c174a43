"""The coordinator's operations as bytes: KIP-1164's, and those between brokers beside it.

- `codec`: what an operation is, one row each; what all messages have in common
- `shapes`: the shapes of requests and answers that rows are put together from
- `coordinator`, `commit_file`, `find_batches`: KIP-1164's operations
- `brokers`: the other ones between brokers, and those of a tiering job
- `readers`: what a program asks that takes records from the object store itself
- `tables`: those about tables, between brokers and of a tiering job
- `sinks`: those about sinks that stage objects, between brokers and of a driver
- `transactions`: those about transactions, between brokers and of the command line
- `feeds`: how followers of a metadata log are fed by its leader
- `access_tokens`: those about access tokens, between brokers and of the command line
- `errors`: our errors as Kafka's codes, and back
"""
