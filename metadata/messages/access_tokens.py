"""Operations about access tokens as bytes: API key 10080 between brokers, 10081 and 10082 of the
command line.

    10080 AlterAccessTokens, between brokers
    10081 AlterAccessTokens      tokens come and go
    10082 ListAccessTokens       those of users, an empty name for those of all

Laid out like those of metadata/messages/brokers.py; docs/coordinator-api.md has the fields. Any
broker may be asked: it asks the leader of the catalogue, and lists what its own replica knows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from metadata.access_tokens import AlterAccessToken, ListedTokens
from metadata.messages.codec import Address, Operation
from metadata.messages.shapes import ERRORS, in_order, listed, or_error
from wal.errors import DisklessError
from wal.wire.fields import FieldReader, compact_string
from wal.wire.layouts import Field, closed, layout


async def _alter(
    coordinator: Any, requests: Sequence[AlterAccessToken]
) -> Sequence[DisklessError | None]:
    # Here alone: what decides needs SQLAlchemy, which is a third of a second for a command.
    from metadata.rules.users import decide_alter_access_tokens

    answer: Sequence[DisklessError | None] = await coordinator.pipeline.perform(
        lambda view, _: decide_alter_access_tokens(view, requests)
    )
    return answer


ALTER_ACCESS_TOKENS_HERE: Final[Operation[Sequence[AlterAccessToken], DisklessError | None]] = (
    Operation(
        key=10_080,
        name="CoordinatorAlterAccessTokens",
        address=Address.CATALOGUE,
        request=listed(layout(AlterAccessToken)),
        answers=in_order(ERRORS),
        at=_alter,
    )
)

ALTER_ACCESS_TOKENS: Final = replace(ALTER_ACCESS_TOKENS_HERE, key=10_081, name="AlterAccessTokens")

_LISTED: Final = layout(ListedTokens)

LIST_ACCESS_TOKENS: Final[Operation[Sequence[str], ListedTokens | DisklessError]] = Operation(
    key=10_082,
    name="ListAccessTokens",
    address=Address.CATALOGUE,
    request=listed(closed(Field(compact_string, FieldReader.compact_string))),
    answers=in_order(or_error(_LISTED, _LISTED.write(ListedTokens()))),
    changes_state=False,
)

TOKENS_BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (ALTER_ACCESS_TOKENS_HERE,)
