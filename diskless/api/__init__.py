"""Kafka's APIs, one file each: decode, call a port, encode."""

from diskless.api.catalogue import kafka_apis

__all__ = ("kafka_apis",)
