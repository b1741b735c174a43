"""The configs and the name of a topic, and what WAL objects note of it.

- `topic_configs`: every key: type, default, bounds, meaning; `topic_config_kinds`: what a key is
- `topic_config_entries`: what is in effect, where it comes from, what a change makes of it
- `topic_defaults`: the part of it that a broker's configuration sets
- `topic_names`: rules for names
- `noted_facts`, `schema_notes`: what is noted of topics for a rebuild
"""
