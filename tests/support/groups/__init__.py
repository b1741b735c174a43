"""Consumer groups, their members, and storms in which these come and go.

- `classic_group_bench`: A classic group with a clock, and a store that works at once unless it
  is held.
- `consumer_group_driver`: Drives one KIP-848 group, on a clock that only moves when told to.
- `consumer_requests`: Heartbeats of KIP-848 members with everything that a test does not care
  about left unsaid.
- `group_members`: Members of consumer groups: each stock client in a thread of its own, behind
  one face.
- `group_requests`: Requests of group members with everything that a test does not care about
  filled in.
- `group_storm`: A storm: members of one group that join and leave at random, while somebody
  writes.
- `groups_bench`: A broker's groups over a store in memory, on a clock and a loop that only move
  when told to.
- `memory_group_store`: A GroupStore in two dictionaries.
- `storm_ledger`: Who owned which partition when in a storm, and what each read: the rules that
  must hold.
- `storm_members`: Members of a group that join and leave in a storm, one class per client
  library.
"""
