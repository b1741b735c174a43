"""Bytes of the Kafka protocol to values and back; touches no socket.

- `wire`: Kafka's primitive types; `header`: the frame
- `messages`: control messages, compiled from their schemas
- `throttle_time`: how long a client has to be quiet, in answers that are made already
- `produce`, `fetch`: the two hot APIs, by hand and without copies; `batch_scan`: what a Produce has
  for each partition, as rows
"""
