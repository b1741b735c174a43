"""A new metadata log from the WAL objects and segments of a bucket.

- `rebuild`: the steps. Read this first.
- `facts`: what the bucket tells; `staged` reads what sinks wrote, and `sink_shares` takes out what
  never became complete; `topics`: which topics there were
- `layout`: the offsets of one partition as values; `placing`: finds them
- `plan`: from the facts to layouts, records and report; `log_builder`: the records that make the
  layouts true, `committed_batches` in them; `commit_order`: in which order; `filler`: objects that
  a rebuild writes itself
- `report`: what could not be known
"""
