"""What lets workers serve listeners that ask who is there, and what they may.

A worker authenticates its clients, and authorizes what it answers by itself. The head authorizes
what is relayed to it, for the client that the worker has authenticated.

- `security_news`: rules, users and secrets as bytes; `rights_teller` tells them, `known_rights`
  keeps them
- `head_security`: what the head does for all workers together; `line_notes`: how it gets their
  notes for the audit log
"""
