"""The errors of group coordinators. `diskless/api/errors.py` knows their codes.

A client acts differently on nearly every one of them, so there are many: some make it join again
under the same id, some under a new one, some look for the coordinator, some give up.
"""

from wal.errors import Rejected, Retriable


class NotGroupCoordinator(Retriable):
    """This broker does not coordinate the group (any more); the client looks for who does."""


class GroupCoordinatorUnavailable(Retriable):
    """Nobody coordinates the group now, or what had to be stored could not be."""


class GroupLoading(Retriable):
    """This broker has just come to coordinate the group and reads its state."""


class RebalanceInProgress(Retriable):
    """The group forms its next generation; the member joins again, under its id."""


class InvalidGroupId(Rejected):
    """An empty group id."""


class UnknownMember(Rejected):
    """No such member (any more); the client joins anew, without an id."""


class MemberIdRequired(Rejected):
    """The client has to join again under the id it is given here."""


class IllegalGeneration(Rejected):
    """The member speaks of another generation than the group's."""


class InconsistentGroupProtocol(Rejected):
    """The member has no protocol that all the others have too."""


class InvalidSessionTimeout(Rejected):
    """Outside group.min.session.timeout.ms and group.max.session.timeout.ms."""


class FencedInstanceId(Rejected):
    """Another member has taken over this instance id; the client stops."""


class GroupMaxSizeReached(Rejected):
    """The group has `group.max.size` members."""


class NonEmptyGroup(Rejected):
    """What was asked for is done only to groups without members."""


class GroupIdNotFound(Rejected):
    """There is no such group."""


class GroupSubscribedToTopic(Rejected):
    """The group reads the topic whose offsets were to be deleted."""


class OffsetMetadataTooLarge(Rejected):
    """The text beside a committed offset is longer than `offset.metadata.max.bytes`."""


class InvalidCommitOffsetSize(Rejected):
    """More offsets in one commit than one record of the metadata log can hold."""


class UnstableOffset(Retriable):
    """A transaction that is still open has written an offset here."""


class FencedMemberEpoch(Rejected):
    """The member's epoch is not one the coordinator can go on from; it starts over."""


class StaleMemberEpoch(Rejected):
    """The member's epoch is behind; a heartbeat tells it the new one."""


class UnreleasedInstanceId(Rejected):
    """The instance id is in use by a member that has not left."""


class UnsupportedAssignor(Rejected):
    """No assignor of this name here."""


class MemberEpochNotSpoken(Rejected):
    """A member of a KIP-848 group used a version that has no member epochs."""


class InvalidRegularExpression(Rejected):
    """A subscription pattern that cannot be compiled."""
