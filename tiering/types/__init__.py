"""Typed columns: what a topic's schema makes of its keys and values in segments.

What brokers use too, to check a topic's configs (the standard library only):

- `shapes`: what a schema asks for. `json_schema`, `avro_schema`: the two languages of schemas
- `schema_configs`: the topic configs that say so
- `columns`: columns with ids that stay, and how they follow a schema. Read this first

What only the job uses, with the extra diskless[types]:

- `arrow_types`: their types in Arrow, and arrays brought into them
- `json_values`, `avro_values`: values to columns
"""
