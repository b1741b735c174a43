"""The jobs of `diskless tier`, as their driver does them: plan, write, commit, until none is due.

The loop that all of them go through is tiering/rounds.py. Read that first.

- `rolls`: batches become segments; `schemas`: before that, typed columns follow their schemas
- `rewrites`: segments become other segments, by a merge or by a compaction
- `passes`: one pass of all of them; `statistics`: what they did, for metrics; `stopping`: signals
- `command`: `diskless tier`; `console`: what it prints; `spark_worker`: the jobs' tasks, on Spark

What a task does to one plan is elsewhere: tiering/roll.py, tiering/merging, tiering/compaction.
"""
