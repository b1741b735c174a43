"""The data directory and the bucket prefix: what lies where, and whose it is.

- `data_directory`: what lies where on disk; `directory_watch`: ends a broker whose directory is
  gone
- `cluster_identity`: whose the bucket prefix is
- `store_rights`: whether the store grants what a broker needs
"""
