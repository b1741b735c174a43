"""Kafka's APIs, one file each: decode, call a port, encode."""
