"""Avro to typed columns.

- `avro_schema`: schemas, for brokers too (the standard library only)
- `avro_values`: values to columns. Read this first
- `lockstep`: values of schemas that Polars does not read. `one_value`: a value at a time, for that
"""
