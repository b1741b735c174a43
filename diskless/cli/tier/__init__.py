"""`diskless tier` on the command line; the job itself is tiering/jobs.

- `tier_command`: what it takes
- `tier_metrics`: what it counts, by name; `tier_http`: the port where that is read
"""
