"""Bytes of the Kafka protocol to values and back; touches no socket.

- `wire`: Kafka's primitive types; `header`: the frame
- `messages`: control messages, compiled from their schemas
- `produce`, `fetch`: the two hot APIs, by hand and without copies
"""
