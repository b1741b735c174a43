"""The coordinator of one metadata partition.

- `coordinator`: the pipeline: decide, append, apply, answer
- `metadata_partition`: the role of this process: follow, stand, lead
"""
