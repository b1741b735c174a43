"""CommitSegments (private API 10001, version 0): a tiering job offers what it rolled.

Not a Kafka API, and not listed by ApiVersions; metadata/messages/segments.py has the bytes. Asks
for CLUSTER_ACTION. Every segment is answered for itself; offering one again is a success that says
so. What concerns the whole request, such as another coordinator, is one code without results.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.errors import error_message, kafka_code
from diskless.authorization import AclOperation
from diskless.ports import ClientInfo
from diskless.server.registry import MustClose, RawHandler
from metadata.messages.segments import (
    CommitSegmentsResponse,
    CommitSegmentsResult,
    decode_commit_request,
    encode_commit_response,
)
from metadata.operations import Coordinator, RolledSegment
from wal.errors import DisklessError, InvalidRequest


def commit_segments_handler(coordinator: Coordinator, access: Access) -> RawHandler:
    """A handler for `ApiRegistry.add_raw`."""

    async def handle(body: bytes, client: ClientInfo) -> bytes:
        try:
            segments = decode_commit_request(body)
        except InvalidRequest as error:
            raise MustClose(str(error)) from error
        refused = access.refused_cluster(client, AclOperation.CLUSTER_ACTION)
        if refused is not None:
            return encode_commit_response(_failure(refused))
        return encode_commit_response(await _answer(coordinator, segments))

    return handle


async def _answer(
    coordinator: Coordinator, segments: Sequence[RolledSegment]
) -> CommitSegmentsResponse:
    try:
        commits = await coordinator.commit_segments(segments)
    except DisklessError as error:
        return _failure(error)
    return CommitSegmentsResponse(
        results=[
            CommitSegmentsResult(
                kafka_code(commit.error), error_message(commit.error) or "", commit.is_duplicate
            )
            for commit in commits
        ]
    )


def _failure(error: DisklessError) -> CommitSegmentsResponse:
    return CommitSegmentsResponse(kafka_code(error), error_message(error) or "")
