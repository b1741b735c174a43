"""The coordinator of one metadata partition.

- `coordinator`: what it can be asked; `segment_plans`: what of it is rolled next;
  `rewrites`: what is merged or compacted next
- `pipeline`: decide, append, apply, answer; `lease`: how long nobody else can lead
- `metadata_partition`: the role of this process: follow, stand, lead
"""
