"""Random values that Hypothesis draws, and how long it draws.

- `coordinator_samples`: Hypothesis strategies for what is asked of coordinators, and for what
  they answer.
- `fuzzing`: What reads bytes of strangers is tested for a time, not for a number of examples.
- `kio_entities`: Hypothesis strategies for kio's message classes, and classes as a later Kafka
  might have them.
- `schema_samples`: Schemas of JSON and Avro, values of them, and the columns that should come
  out.
- `typed_samples`: Hypothesis strategies that follow from annotations, as layouts do
  (wal/wire/layouts.py).
"""
