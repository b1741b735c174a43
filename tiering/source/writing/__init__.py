"""Rows become records of a topic: `df.write` and `df.writeStream`.

- `at_least_once`: through a producer; the default
- `exactly_once`: with option `sink.id`: tasks stage objects, the driver commits all of a batch
- `sink_commits`: what the driver asks of brokers for that
- `staging`: one task: rows to objects in the bucket
- `record_rows`: which partition and which record batch a row goes to
- `content_digest`: by which a batch that is written again is told from another one
- `sink_columns`: which columns there may be
"""
