"""`diskless user`: users and their passwords.

- `user_commands`: the commands
- `user_client`: asks a running broker
- `passwords`: where a password comes from
"""
