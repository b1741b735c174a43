"""Several brokers on one bucket.

- `failover`: how long clients wait when a broker dies, stops or hands over
- `followers`: how far behind a follower is, and what an idle cluster asks the store for
"""
