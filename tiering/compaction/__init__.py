"""Key compaction: of each key the newest record stays, under the offset that it has.

    plan (coordinator) -> keys of all segments -> what goes -> outputs -> one swap (coordinator)

- `losses`: which records go, from keys and offsets alone. Read this first.
- `key_columns`: reading just these columns of a segment
- `outputs`: which segments are written anew, and together
- `rewriting`: one output: segments in, segment without the lost records out
- `removal_check`: whether records went that should have stayed, for `diskless verify`
- `spark_compactor`: all of that on Spark; its driver is tiering/jobs/rewrites.py
"""
