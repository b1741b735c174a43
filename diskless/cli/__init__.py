"""The command line.

- `cli`: one sub-command, one function; `serve`: a broker as a process; `tables`: what commands
  print
- `verify`, `rebuild`, `wal_dump`: the commands of these names
- `metadata_dump`, `snapshot_list`, `metadata_sources`: `diskless metadata`, and where it reads from
- `topic_client`, `quota_client`, `admin_connection`: what `diskless topic` and `diskless quota` ask
  of a running broker, and the stock admin client they do it with
"""
