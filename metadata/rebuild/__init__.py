"""A new metadata log from the WAL objects and segments of a bucket.

- `rebuild`: the steps. Read this first.
- `facts`: what the bucket tells, `staged` of what sinks wrote; `topics`: which topics there were
- `placement`, `layout`: the offsets of one partition; as values
- `fixed`, `fit`, `gaps`, `order`: what is known of it; what goes between known offsets, and the
  arithmetic of that; what comes in which order
- `plan`: from the facts to layouts, records and report; `log_builder`: the records that make the
  layouts true; `commit_order`: in which order; `filler`: objects that a rebuild writes itself
- `report`: what could not be known
"""
