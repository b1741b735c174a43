"""The second tier, on one core, beside what stock tools take.

- `roll`, `typed`: a segment rolled; with columns of a JSON Schema
- `compaction`: segments of a compacted topic
- `tables`: commits of an Iceberg table
- `spark_source`: reading a topic in Spark
"""
