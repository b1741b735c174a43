"""Typed columns: what a topic's schema makes of its keys and values in segments.

What brokers use too, to check a topic's configs (the standard library only):

- `shapes`: what a schema asks for. `json_schema` and that of `avro/`: the two languages of schemas
- `schema_configs`: the topic configs that say so
- `columns`: columns with ids that stay, and how they follow a schema. Read this first

The job:

- `following`: columns of a topic after its schemas, in the driver. `registry`: a schema registry
- `typed_roll`: a roll with the columns of its plan, in the tasks
- `remembered`: columns back from the schema of a segment, for a rebuild

What that needs the extra diskless[types] for:

- `typed_rows`: all typed columns of the rows of a row group
- `arrow_types`: their types in Arrow, and arrays brought into them
- `json_values` and `avro/`: values to columns
- `typed_verification`: makes them once more and compares, for `diskless verify`
"""
