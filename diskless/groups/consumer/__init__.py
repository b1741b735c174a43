"""Groups of KIP-848: members send heartbeats, and the broker assigns.

- `consumer_group`: the state machine
- `consumer_core`, `roster`: what all members share, whichever protocol they speak; who is in, and
  who holds what
- `consumer_requests`: which heartbeats make no sense, and what the others say
- `reconciliation`: how a member gets from what it has to what it is assigned
- `classic_members`: members that still speak the classic protocol
- `subscribed_topics`, `topic_patterns`: which topics members mean
"""
