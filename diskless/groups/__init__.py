"""Consumer groups: who is in them, what is assigned, and how far they have read.

- `requests`: what a group coordinator is asked, and what it answers
- `group_router`: which coordinator a group has; `group_coordinator`: the groups of one metadata
  partition, at its leader; `live_groups`: those in use, and when they wake
- `group_kinds`: which kind a group is of; `group_descriptions`: groups as administrators see them
- `group_machine`: what both kinds of groups have in common; `group_migration`: groups that change
  their kind while members are in them
- `classic/`, `consumer/`: the state machines of both protocols; `classic_state`, `consumer_state`:
  what is stored of them
- `assignors/`: who gets which partitions
- `group_offsets`: what groups commit and fetch; `offsets`: the offset manager; `group_store`: where
  groups and offsets are made durable
- `settings`, `errors`: the section of the configuration; what a coordinator refuses
"""
