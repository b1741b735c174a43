"""One record batch: its header, its checks, its records as columns.

- `record_batch`: the header: parse it, patch it, check its CRC. Read this first.
- `batch_validation`: what is checked on produce; `plain_batches`: the same of
  many as columns; `batch_preparation`: what of it runs in a thread
- `compression`: the codecs; `recompression`: another codec for a batch
- `varint_columns`, `record_fields`: varints a column at a time; where the fields of records lie
- `record_columns`, `record_encoding`: records as Arrow columns, and back
- `hole_batches`: what is served where records are gone
- `marker_batches`: what ends a transaction, made of what the coordinator knows of it
- `crc_columns`: the CRCs of many batches at once, joined to one of their bytes
- `record_scan`: a look into one batch, in bounded memory; `time_index`: what is known of the
  timestamps of some batches
"""
