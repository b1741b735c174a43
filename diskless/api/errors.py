"""Maps our errors to Kafka's codes, in one table, and holds the errors that only the API knows.

Between brokers the codes mean something else (metadata/messages/errors.py).

Three decisions in it are not obvious:

- A write that certainly did not happen is KAFKA_STORAGE_ERROR (56): clients refresh their metadata
  and send it again, and librdkafka counts it as "not persisted". That holds for a full queue
  (Overloaded) too, and for NotCoordinator: the metadata coordinator is not the group coordinator
  that NOT_COORDINATOR (16) sends clients to look for, and librdkafka gives a batch up at it.
- A write that may have happened is REQUEST_TIMED_OUT (7): clients send it again as well, but count
  it as "possibly persisted". Never 56, never UNKNOWN_SERVER_ERROR, which is final.
- Stored bytes that fail their checks are CORRUPT_MESSAGE (2): a consumer shows it to its
  application and may try again. A retriable storage error would hide the damage for ever.
"""

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from diskless.fetch import fetch_sessions
from diskless.groups import errors as group_errors
from diskless.transactions import errors as transaction_errors
from metadata.messages.errors import message_of
from wal import errors
from wal.errors import DisklessError, Rejected


class UnsupportedVersion(Rejected):
    """A value that only a version we do not serve gives a meaning to."""


class InvalidRequiredAcks(Rejected):
    """acks other than -1, 0 and 1."""


class InvalidReplicationFactor(Rejected):
    """A replication factor that is neither positive nor -1."""


class InvalidReplicaAssignment(Rejected):
    """A manual assignment of other partitions than are to be created."""


class ElectionNotNeeded(Rejected):
    """The partition has its preferred leader."""


class NoReassignmentInProgress(Rejected):
    """A reassignment is cancelled that there is not."""


class GroupAuthorizationFailed(Rejected):
    """The client may not do this to the group."""


class TransactionalIdAuthorizationFailed(Rejected):
    """The client may not do this to the transactional id."""


class OperationNotAttempted(Rejected):
    """Nothing is wrong with it, but with something that it would be done together with."""


class SecurityDisabled(Rejected):
    """Rules of access control at a broker that has no authorizer."""


class ResourceNotFound(Rejected):
    """What was named is not there."""


class DuplicateResource(Rejected):
    """Something was named twice that can be named once."""


class UnacceptableCredential(Rejected):
    """A credential that is too weak, or of nobody who may have one."""


class IllegalSaslState(Rejected):
    """A request of a log-in that is not its turn."""


class SaslAuthenticationFailed(Rejected):
    """A client is not who it says it is."""


class UnsupportedSaslMechanism(Rejected):
    """A SASL mechanism that is not served."""


class InvalidUpdateVersion(Rejected):
    """A level that a feature of the cluster cannot have here."""


class UnsupportedEndpointType(Rejected):
    """Controllers as endpoints of their own: every broker is one."""


KAFKA_CODE: Final[Mapping[type[DisklessError], ErrorCode]] = {
    DisklessError: ErrorCode.unknown_server_error,
    Rejected: ErrorCode.invalid_request,
    errors.BatchRejected: ErrorCode.invalid_record,
    errors.CorruptBatch: ErrorCode.corrupt_message,
    errors.InvalidRecord: ErrorCode.invalid_record,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    # As in Kafka: who does not say an id may not write in its transactions.
    errors.TransactionalIdMissing: ErrorCode.transactional_id_authorization_failed,
    errors.UnsupportedCompression: ErrorCode.unsupported_compression_type,
    errors.RecordTooLarge: ErrorCode.message_too_large,
    errors.UnknownPartition: ErrorCode.unknown_topic_or_partition,
    errors.UnknownTopicId: ErrorCode.unknown_topic_id,
    errors.UnknownFile: ErrorCode.resource_not_found,
    errors.UnknownLeaderEpoch: ErrorCode.unknown_leader_epoch,
    errors.FencedLeaderEpoch: ErrorCode.fenced_leader_epoch,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidConfig: ErrorCode.invalid_config,
    errors.InvalidRequest: ErrorCode.invalid_request,
    errors.PolicyViolation: ErrorCode.policy_violation,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.StaleProducerEpoch: ErrorCode.invalid_producer_epoch,
    errors.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    errors.SequenceGivenAgain: ErrorCode.unknown_producer_id,
    errors.ProducerFenced: ErrorCode.producer_fenced,
    errors.InvalidProducerIdMapping: ErrorCode.invalid_producer_id_mapping,
    errors.InvalidTransactionState: ErrorCode.invalid_txn_state,
    errors.InvalidTransactionTimeout: ErrorCode.invalid_transaction_timeout,
    errors.ConcurrentTransactions: ErrorCode.concurrent_transactions,
    errors.AppendTooLarge: ErrorCode.message_too_large,
    errors.Retriable: ErrorCode.kafka_storage_error,
    errors.OutcomeUnknown: ErrorCode.request_timed_out,
    # Metadata names an object that the store does not have: damage, like bytes that fail a check.
    errors.ObjectNotFound: ErrorCode.corrupt_message,
    errors.CorruptData: ErrorCode.corrupt_message,
    group_errors.NotGroupCoordinator: ErrorCode.not_coordinator,
    group_errors.GroupCoordinatorUnavailable: ErrorCode.coordinator_not_available,
    group_errors.GroupLoading: ErrorCode.coordinator_load_in_progress,
    group_errors.RebalanceInProgress: ErrorCode.rebalance_in_progress,
    group_errors.InvalidGroupId: ErrorCode.invalid_group_id,
    group_errors.UnknownMember: ErrorCode.unknown_member_id,
    group_errors.MemberIdRequired: ErrorCode.member_id_required,
    group_errors.IllegalGeneration: ErrorCode.illegal_generation,
    group_errors.InconsistentGroupProtocol: ErrorCode.inconsistent_group_protocol,
    group_errors.InvalidSessionTimeout: ErrorCode.invalid_session_timeout,
    group_errors.FencedInstanceId: ErrorCode.fenced_instance_id,
    group_errors.GroupMaxSizeReached: ErrorCode.group_max_size_reached,
    group_errors.NonEmptyGroup: ErrorCode.non_empty_group,
    group_errors.GroupIdNotFound: ErrorCode.group_id_not_found,
    group_errors.GroupSubscribedToTopic: ErrorCode.group_subscribed_to_topic,
    group_errors.OffsetMetadataTooLarge: ErrorCode.offset_metadata_too_large,
    group_errors.InvalidCommitOffsetSize: ErrorCode.invalid_commit_offset_size,
    group_errors.UnstableOffset: ErrorCode.unstable_offset_commit,
    group_errors.FencedMemberEpoch: ErrorCode.fenced_member_epoch,
    group_errors.StaleMemberEpoch: ErrorCode.stale_member_epoch,
    group_errors.UnreleasedInstanceId: ErrorCode.unreleased_instance_id,
    group_errors.UnsupportedAssignor: ErrorCode.unsupported_assignor,
    group_errors.InvalidRegularExpression: ErrorCode.invalid_regular_expression,
    group_errors.MemberEpochNotSpoken: ErrorCode.unsupported_version,
    transaction_errors.NotTransactionCoordinator: ErrorCode.not_coordinator,
    transaction_errors.TransactionCoordinatorUnavailable: ErrorCode.coordinator_not_available,
    errors.TransactionalIdNotFound: ErrorCode.transactional_id_not_found,
    # The one that producers of all ages send the batch again at without looking for a leader.
    transaction_errors.TransactionNotKnown: ErrorCode.not_enough_replicas,
    transaction_errors.TransactionAbortable: ErrorCode.transaction_abortable,
    UnsupportedVersion: ErrorCode.unsupported_version,
    InvalidRequiredAcks: ErrorCode.invalid_required_acks,
    InvalidReplicationFactor: ErrorCode.invalid_replication_factor,
    InvalidReplicaAssignment: ErrorCode.invalid_replica_assignment,
    ElectionNotNeeded: ErrorCode.election_not_needed,
    NoReassignmentInProgress: ErrorCode.no_reassignment_in_progress,
    fetch_sessions.FetchSessionUnknown: ErrorCode.fetch_session_id_not_found,
    fetch_sessions.InvalidFetchSessionEpoch: ErrorCode.invalid_fetch_session_epoch,
    fetch_sessions.FetchSessionTopicIds: ErrorCode.fetch_session_topic_id_error,
    errors.TopicAuthorizationFailed: ErrorCode.topic_authorization_failed,
    GroupAuthorizationFailed: ErrorCode.group_authorization_failed,
    TransactionalIdAuthorizationFailed: ErrorCode.transactional_id_authorization_failed,
    OperationNotAttempted: ErrorCode.operation_not_attempted,
    errors.ClusterAuthorizationFailed: ErrorCode.cluster_authorization_failed,
    SecurityDisabled: ErrorCode.security_disabled,
    InvalidUpdateVersion: ErrorCode.invalid_update_version,
    UnsupportedEndpointType: ErrorCode.unsupported_endpoint_type,
    errors.UnknownCredential: ErrorCode.resource_not_found,
    ResourceNotFound: ErrorCode.resource_not_found,
    DuplicateResource: ErrorCode.duplicate_resource,
    UnacceptableCredential: ErrorCode.unacceptable_credential,
    IllegalSaslState: ErrorCode.illegal_sasl_state,
    SaslAuthenticationFailed: ErrorCode.sasl_authentication_failed,
    UnsupportedSaslMechanism: ErrorCode.unsupported_sasl_mechanism,
}


def kafka_code(error: DisklessError | None) -> int:
    """The code of the nearest mapped ancestor; 0 for no error."""
    if error is None:
        return 0
    return next(int(KAFKA_CODE[kind]) for kind in type(error).__mro__ if kind in KAFKA_CODE)


def error_message(error: DisklessError | None) -> str | None:
    """Returns what a client is told beside the code."""
    return None if error is None else message_of(error)


def error_fields(error: DisklessError | None) -> Mapping[str, object]:
    """Both, by the names that they have in every response that has both."""
    return {"error_code": kafka_code(error), "error_message": error_message(error)}
