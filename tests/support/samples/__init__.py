"""Samples of what is written and asked, fixed ones and those that Hypothesis draws.

- `avro_samples`: Avro schemas with values of them, values as bytes, and what decodes them.
- `commit_samples`: What commits that are decided both ways are about, and how a way is chosen.
- `coordinator_samples`: Hypothesis strategies for what is asked of coordinators, and for what
  they answer.
- `file_samples`: FileCommitted records of any columns.
- `fuzzing`: What reads bytes of strangers is tested for a time, not for a number of examples.
- `kio_entities`: Hypothesis strategies for kio's message classes, and classes as a later Kafka
  might have them.
- `record_samples`: A record of every type, and its bytes, written out by hand.
- `schema_samples`: Schemas of JSON and Avro, values of them, and the columns that should come
  out.
- `typed_samples`: Hypothesis strategies that follow from annotations, as layouts do
  (wal/wire/layouts.py).
"""
