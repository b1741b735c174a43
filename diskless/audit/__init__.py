"""Who did what, and who was refused: lines for people who have to answer for a cluster.

- `audit_log`: what is noted, how often, and in which words; `audit_sinks`: where lines go
- `audit_settings`: whether they go to a file of their own
"""
