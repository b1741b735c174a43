"""What `diskless token` asks a broker: private APIs 10081 and 10082.

Not Kafka APIs, and not listed by ApiVersions. To make or revoke tokens takes ALTER on the cluster,
to list them DESCRIBE: whoever may make one may be anybody on the HTTP port. When a token was made
is said by this broker's clock; one that would have ended, or last longer than LIFETIME_MAX_MS, is
refused, and so is one of a name that no user has.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    RunningOperations,
    client_api,
    coordinator_api,
)
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, Authorizer
from diskless.ports import ClientInfo
from diskless.server.registry import Api
from metadata.access_tokens import AccessToken, AlterAccessToken, ListedTokens
from metadata.clients.routed_client import RoutedClient
from metadata.messages.access_tokens import (
    ALTER_ACCESS_TOKENS,
    ALTER_ACCESS_TOKENS_HERE,
    LIST_ACCESS_TOKENS,
)
from wal.errors import DisklessError, InvalidRequest

LIFETIME_MAX_MS: Final = 366 * 24 * 3_600_000
NAME_LENGTH_MAX: Final = 255
_ID_LENGTH: Final = 16
_DIGEST_BYTES: Final = 32


def token_apis(
    client: RoutedClient,
    now_ms: Callable[[], int],
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry."""
    access = Access(authorizer, audit)

    def refusal(of: ClientInfo, _: Any) -> DisklessError | None:
        return access.refused_cluster(of, AclOperation.ALTER)

    def refused_list(of: ClientInfo, _: Any) -> DisklessError | None:
        return access.refused_cluster(of, AclOperation.DESCRIBE)

    def alter_for(of: ClientInfo) -> Call[Sequence[AlterAccessToken], DisklessError | None]:
        async def alter(
            requests: Sequence[AlterAccessToken], timeout_ms: int
        ) -> Sequence[DisklessError | None]:
            now = now_ms()
            stamped = [_checked(request, now) for request in requests]
            known = client.access_tokens()
            altered = await client.call(ALTER_ACCESS_TOKENS_HERE, stamped, timeout_ms=timeout_ms)
            for request, error in zip(stamped, altered, strict=True):
                if error is None:
                    # Who revokes names the id alone.
                    token = known.get(request.token.token_id, request.token)
                    api = "RevokeAccessToken" if request.is_revoked else "CreateAccessToken"
                    access.audit.changed(of, api, f"token:{token.user}/{token.token_id}")
            return altered

        return alter

    async def listed(
        users: Sequence[str], timeout_ms: int
    ) -> Sequence[ListedTokens | DisklessError]:
        known = client.access_tokens().values()
        return [
            ListedTokens(sorted(token for token in known if user in ("", token.user)))
            for user in users
        ]

    return [
        client_api(ALTER_ACCESS_TOKENS, alter_for, running, access, refusal=refusal),
        coordinator_api(LIST_ACCESS_TOKENS, listed, running, access, refusal=refused_list),
    ]


def _checked(request: AlterAccessToken, now_ms: int) -> AlterAccessToken:
    """Raises InvalidRequest."""
    token: AccessToken = request.token
    if request.is_revoked:
        return request
    if not token.user or len(token.user) > NAME_LENGTH_MAX or token.user.startswith("__"):
        raise InvalidRequest("a token is of a user whose name does not begin with __")
    if len(token.token_id) != _ID_LENGTH or len(token.digest) != _DIGEST_BYTES:
        raise InvalidRequest("no id and digest of a token")
    if not now_ms < token.ends_at_ms <= now_ms + LIFETIME_MAX_MS:
        raise InvalidRequest("a token ends in the future, within a year of now")
    return request._replace(token=token._replace(made_at_ms=now_ms))
