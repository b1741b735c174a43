"""The coordinator of one metadata partition.

- `coordinator`: what it can be asked; `catalogue`: what only the catalogue's coordinator is asked
- `segment_plans`: what is rolled next; `rewrites`: what is merged or compacted next
- `sinks`: the batches of sinks; `sink_notes`: what of them a rebuild must find in the bucket;
  `unsettled_batches`: what of them is not rolled yet; `end_notes`: notes of how transactions end
- `placement`: which coordinator a group or a transactional id has
- `transactions`: of transactional ids, and their ends in partitions and groups
- `pipeline`: decide, append, apply, answer; `lease`: what keeps others from standing
- `metadata_partition`: the role of this process: follow, stand, lead; `following`: how it follows;
  `standing`: when it stands; `feeding`: how leaders feed followers
"""
