"""CreateAcls, key 30, versions 1-3: adds rules of access control.

- Asks for ALTER on the cluster.
- A rule is refused for itself, and does not hinder the others: INVALID_REQUEST for one that there
  cannot be, POLICY_VIOLATION for one more than 10,000. Kafka has no such limit.
- One that is there already is a success.
- A rule is durable and in force on this broker when it is answered, on others as soon as they hear
  of it (diskless.metadata.follow.interval.ms at most).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from diskless.acls.acl_checks import check_rule
from diskless.acls.acl_text import rule_text
from diskless.api.access import Access
from diskless.api.acls.acl_rows import checked, refusal, rule_of
from diskless.api.answers import each_answered
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import AclAdmin, ClientInfo
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.acls import AclBinding
from wal.errors import DisklessError

KEY: Final = 30


def api(acls: AclAdmin | None, access: Access) -> Api:
    """`acls` is None without an authorizer."""

    def result(
        outcome: AclBinding | DisklessError,
        left: Iterator[DisklessError | None],
        client: ClientInfo,
    ) -> Fields:
        if isinstance(outcome, DisklessError):
            return error_fields(outcome)
        error = next(left)
        if error is None:
            access.audit.changed(client, "CreateAcls", f"acl:{rule_text(outcome)}")
        return error_fields(error)

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused = refusal(access, acls, request.client, AclOperation.ALTER)
        outcomes: list[AclBinding | DisklessError] = []
        for row in asked.creations:
            outcomes.append(refused or checked(check_rule, rule_of(row)))
            yield
        wanted = [outcome for outcome in outcomes if isinstance(outcome, AclBinding)]

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            left = iter(errors)
            results = (result(outcome, left, request.client) for outcome in outcomes)
            return encode_response(KEY, request.version, {"results": results})

        if not wanted:
            return (yield from encode(()))
        request.changes = len(wanted)
        assert acls is not None
        return Deferred(each_answered(acls.create_acls, wanted), encode, None)

    return Api(key=KEY, name="CreateAcls", versions=range(1, 4), flexible_from=2, handler=handle)
