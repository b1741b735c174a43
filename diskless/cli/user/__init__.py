"""`diskless user`: users and their passwords; `diskless token`: their tokens.

- `user_commands`: the commands
- `user_client`: asks a running broker
- `passwords`: where a password comes from
- `token_commands`, `token_client`: the same for tokens
"""
