"""What transactions cost.

- `transactions`: commits alone, beside others, and throughput
- `raw_transactions`: a transactional producer by hand
"""
