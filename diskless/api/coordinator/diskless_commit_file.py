"""DisklessCommitFile, key 95, version 0: gives the batches of an uploaded object their offsets.

- Idempotent by object key: a commit that was answered before is answered the same way again.
- Errors belong to batches. A batch of another magic, or whose numbers contradict each other, is
  INVALID_RECORD; a batch whose coordinator is led elsewhere NOT_COORDINATOR; the others are
  committed.
- The size of a request is bounded by `socket.control.request.max.bytes`: 4 MiB hold 50,000 batches.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import RunningOperations, coordinator_api
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.commit_file import COMMIT_FILE, CommitFileMessage
from metadata.operations import BatchCommit


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def commit_file(message: CommitFileMessage, timeout_ms: int) -> Sequence[BatchCommit]:
        return await client.commit_file(message.file, timeout_ms=timeout_ms)

    return coordinator_api(COMMIT_FILE, commit_file, running, access)
