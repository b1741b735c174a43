"""Metadata logs: what one promises, one on local disk, one in an object store.

- `log`: the promise. Read this first.
- `local_log`: on `wal.segmented_log`
- `object_log`: in the bucket: election, appends, pruning. `object_log_reader` is the half that only
  reads; `object_puts` finds out what became of a put; `superseded_objects` says since when an
  object is not the last one any more; `end_proofs` proves that nobody else leads, for strict
  reads; `object_log_settings`
- `log_object`: the bytes of one object; `log_batch`: a batch of metadata records as a RecordBatch;
  `shown_batches`: what of it is shown to readers
- `shared_tail`: how objects get from a leader to its followers without the store;
  `recent_objects`: those in memory
"""
