"""What is stored, as tables for people; the commands print them.

- `stored_dump`: chunks and WAL objects; `metadata_dump`: the metadata log and its state
"""
