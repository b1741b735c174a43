"""What the processes of one broker share.

- `shared_memory`: memory without a name, which processes inherit
- `chunk_notices`: which chunks each process has sealed; `sibling_chunks`: reading those of others
- `connection_counts`: how many connections each has, and has taken from the head
- `cells`: numbers of very many names; `shared_rates`: what clients did lately, for their quotas;
  `shared_counts`: what there is now, for limits
- `shared_descriptors`: all memory that a worker is born with
- `merged_metrics`: one page of metrics, of the pages of all
"""
