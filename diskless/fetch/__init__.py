"""The partitions of a Fetch as columns, the sessions that remember them, memory to read into.

- `fetch_rows`: from the request to the answer without a Python object for each partition
- `read_ahead`: has fetched what consumers will ask for next
- `read_memory`: memory that answers are read into
- `read_positions`: where readers stopped in the middle of an extent
- `fetch_sessions`: KIP-227: a consumer names its partitions once, and then only what changed
"""
