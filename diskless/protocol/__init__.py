"""Bytes of the Kafka protocol to values and back; touches no socket."""
