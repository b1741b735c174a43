"""Objects that others than brokers write: their names, and their bytes.

A Spark sink puts WAL objects below `staged/<sink id>/` and asks a broker to commit them.

- `staged_keys`: how they are named, and for how long they may be committed
- `staged_object`: record batches in memory as one WAL object
"""
