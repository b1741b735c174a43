"""Kafka's APIs, one file each: decode, call a port, encode."""

from diskless.api.catalogue import kafka_apis
from diskless.api.coordinator.access_tokens import token_apis
from diskless.api.coordinator.coordinator_catalogue import coordinator_apis
from diskless.api.coordinator.coordinator_operation import RunningOperations
from diskless.api.coordinator.reading import reader_apis
from diskless.api.coordinator.segments import segment_apis
from diskless.api.coordinator.sinks import SinkService, sink_apis
from diskless.api.coordinator.transactions import transaction_apis

__all__ = (
    "RunningOperations",
    "SinkService",
    "coordinator_apis",
    "kafka_apis",
    "reader_apis",
    "segment_apis",
    "sink_apis",
    "token_apis",
    "transaction_apis",
)
