"""Iceberg tables of topics: written by the tiering job, from the coordinators' live segments.

- `passes`: the passes of one job, and what they share; `report`: what one did
- `registrar`: makes each table name exactly the live segments. Read this first
- `live_segments`: asks the coordinators which segments are live
- `hidden_rows`: delete files: rows that a table leaves out because they were deleted
- `data_files`: a segment's footer as Iceberg's data file; the schema of a table
- `snapshots`: the next metadata of a table: manifests, manifest list, what expires
- `table_files`: metadata files in the store: reading, writing, deleting those that nothing names

PyIceberg lives here and is an extra, `diskless[tables]`; a broker never imports it. The pointer of
a table, and which segments stay stored for it, are the coordinator's (metadata/rules/tables.py).
"""
