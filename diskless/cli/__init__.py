"""The command line.

- `cli`: the entry point; `options`: what all parsers have in common
- `broker_commands`, `stored_commands`, `metadata_commands`: the other commands, what each takes
  beside what it does
- `serve`: a broker as a process; `tables`: what commands print
- `verify`, `rebuild`: the work of these commands
- `dumps`: what is stored, as tables
- `snapshot_list`, `metadata_sources`: `diskless metadata`, and where it reads from
- `acl`: `diskless acl`; `user`: `diskless user`; `transactions`: `diskless transaction`; `tier`:
  `diskless tier`
- `topic_client`, `quota_client`, `admin_connection`: what `diskless topic` and `diskless quota` ask
  of a running broker, and the stock admin client they do it with
"""
