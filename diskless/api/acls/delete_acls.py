"""DeleteAcls, key 31, versions 1-3: deletes the rules that filters find, and lists them.

- Asks for ALTER on the cluster.
- The coordinator finds them, so a rule that was created through another broker a moment ago goes as
  well. One that two filters find is told by the first of them.
- A filter is refused for itself, and does not hinder the others: INVALID_REQUEST.
- Rules are gone for good, and here without effect, when the request is answered; on other brokers
  as soon as they hear of it (diskless.metadata.follow.interval.ms at most).
"""

from collections.abc import Sequence
from typing import Final

from diskless.acls.acl_checks import check_filter
from diskless.acls.acl_text import rule_text
from diskless.api.access import Access
from diskless.api.acls.acl_rows import checked, entry_fields, filter_of, refusal, resource_fields
from diskless.api.answers import each_answered, with_answers
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import AclAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.acls import AclFilter, DeletedAcls
from wal.errors import DisklessError

KEY: Final = 31

_FILTERS_AT_ONCE: Final = 10
"""Each is held to every rule there is, which takes some milliseconds of the coordinator."""

_Outcome = DeletedAcls | DisklessError


def api(acls: AclAdmin | None, access: Access) -> Api:
    """`acls` is None without an authorizer."""

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused = refusal(access, acls, request.client, AclOperation.ALTER)
        filters: list[AclFilter | DisklessError] = []
        for row in asked.filters:
            filters.append(refused or checked(check_filter, filter_of(row)))
            yield
        wanted = [item for item in filters if isinstance(item, AclFilter)]

        def encode(outcomes: Sequence[_Outcome]) -> ReplySteps:
            for outcome in outcomes:
                if not isinstance(outcome, DisklessError):
                    for rule in outcome.rules:
                        gone = f"acl:{rule_text(rule)}"
                        access.audit.changed(request.client, "DeleteAcls", gone)
                        yield
            values = {"filter_results": map(_result, with_answers(filters, outcomes))}
            return (yield from encode_response(KEY, request.version, values))

        if not wanted:
            return (yield from encode(()))
        request.changes = len(wanted)
        assert acls is not None
        deleted = each_answered(acls.delete_acls, wanted, _FILTERS_AT_ONCE)
        return Deferred(deleted, encode, None)

    return Api(key=KEY, name="DeleteAcls", versions=range(1, 4), flexible_from=2, handler=handle)


def _result(outcome: _Outcome) -> Fields:
    if isinstance(outcome, DisklessError):
        return {**error_fields(outcome), "matching_acls": ()}
    matching = (
        {**error_fields(None), **resource_fields(rule), **entry_fields(rule)}
        for rule in outcome.rules
    )
    return {**error_fields(None), "matching_acls": matching}
