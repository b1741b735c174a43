"""`diskless acl`: rules of access control, added, listed, removed and explained.

- `acl_commands`: the parsers and what they print; `acl_client`: asks a running broker
"""
