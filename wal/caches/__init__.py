"""What was read of objects lately, or will be read soon: nobody waits for the store twice.

- `object_cache`: what readers ask: blocks that were read recently, in memory and on disk
- `block_files`: the disk tier
- `cold_reads`: old bytes, each fetched once, and some of them ahead
"""
