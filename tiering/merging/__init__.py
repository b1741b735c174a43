"""Merging: neighbouring segments of a partition become one, with every record.

- `merge`: what one task does: reads the segments of a plan and writes the one in their place
- `typed_union`: their typed columns under one schema

Which segments are merged, and when, the coordinator plans: metadata/rules/rewriting/merges.py;
their driver is tiering/jobs/rewrites.py.
"""
