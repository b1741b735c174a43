"""Sweeps look through parts of the bucket for objects that no other worker knows of.

- `bucket_sweep`: how they run: a pass in each interval of the orphan scan
- `tables_sweep`: metadata files of tables whose topic is gone
- `segments_sweep`: objects that jobs wrote as segments, and nobody will commit
"""
