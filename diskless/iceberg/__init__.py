"""The catalogue of tables that the broker serves over HTTP: Iceberg's REST protocol, reading only.

- `rest_catalogue`: the routes. Read this first
- `served_tables`: which tables there are, and their metadata files out of the object store
"""
