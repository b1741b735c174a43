"""Which batches of sinks are committed, and which sinks are forgotten.

- `commit_sink`: one batch, all of its objects or none
"""
