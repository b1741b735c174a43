"""The partitions of a Fetch as columns, and the sessions that remember them.

- `fetch_rows`: from the request to the answer without a Python object for each partition
- `fetch_sessions`: KIP-227: a consumer names its partitions once, and then only what changed
"""
