"""The data directory and the bucket prefix: what lies where, and whose it is.

- `data_directory`: what lies where on disk; `directory_watch`: ends a broker whose directory is
  gone
- `cluster_identity`: whose the bucket prefix is
- `first_users`: the first user, on its way to the catalogue
- `private_places`: that nobody else looks into them
- `store_rights`: whether the store grants what a broker needs
"""
