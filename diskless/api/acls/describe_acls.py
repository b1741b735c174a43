"""DescribeAcls, key 29, versions 1-3: the rules that a filter finds, as this broker knows them.

- Asks for DESCRIBE on the cluster.
- Rules come grouped by resource, in order.
- An error concerns the whole request: SECURITY_DISABLED without an authorizer, INVALID_REQUEST for
  numbers that no rule can have.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from diskless.acls.acl_checks import check_filter
from diskless.api.access import Access
from diskless.api.acls.acl_rows import entry_fields, filter_of, refusal, resource_fields
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import AclAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from metadata.acls import AclBinding
from wal.errors import DisklessError

KEY: Final = 29


def api(acls: AclAdmin | None, access: Access) -> Api:
    """`acls` is None without an authorizer."""

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        error = refusal(access, acls, request.client, AclOperation.DESCRIBE)
        found: list[AclBinding] = []
        if error is None:
            assert acls is not None
            try:
                wanted = check_filter(filter_of(asked))
            except DisklessError as problem:
                error = problem
            else:
                for rule in acls.acls():
                    if wanted.finds(rule):
                        found.append(rule)
                    yield
        values = {**error_fields(error), "resources": _resources(sorted(found))}
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="DescribeAcls", versions=range(1, 4), flexible_from=2, handler=handle)


def _resources(rules: Iterable[AclBinding]) -> Iterator[Fields]:
    """`rules` in order, so that those of a resource stand together."""
    for _, group in groupby(rules, itemgetter(0, 1, 2)):
        some = [*group]
        yield {**resource_fields(some[0]), "acls": map(entry_fields, some)}
