"""Rules for replacing committed segments by others.

- `rewrites`: when a compaction is due; which plans and commits of rewrites are taken
- `merges`: which small neighbours are merged
- `leftovers`: which objects nobody commits as segments any more
"""
