"""Which batches of sinks are committed, and which sinks are forgotten.

- `commit_sink`: one batch, all of its objects or none, at the sink's home; `share`: what another
  coordinator commits of it; `ranges`: at which offsets
"""
