"""Reads a client's rack from its client id: `diskless_az=<rack>` or `diskless_rack_id=<rack>`.

Metadata requests do not say where a client is, but every client can choose its id. The hint stands
at the start of the id or behind a blank, comma or bar, and ends before the next one of these or an
equals sign: `diskless_az=eu-west-1a`, `billing,diskless_rack_id=a`. Frameworks append to the id
they are given (`-producer-1`, `-StreamThread-2-consumer`), so what is not a rack that exists is
shortened by one `-...` after the other until it is.

`diskless_az` is what the reference implementation reads, `diskless_rack_id` is KIP-1163's name for
it; where both are given, the first that names a rack counts. A rack in which no broker is alive is
no rack: such a client is served as one that said nothing.
"""

import re
from collections.abc import Collection
from typing import Final

_HINT: Final = re.compile(r"(?:^|[ ,|])diskless_(?:az|rack_id)=([^=,| ]*)")


def client_rack(client_id: str, racks: Collection[str]) -> str | None:
    """The one of `racks` that `client_id` names; None when it names none of them."""
    for hint in _HINT.finditer(client_id):
        rack = hint[1]
        while rack:
            if rack in racks:
                return rack
            rack = rack.rpartition("-")[0]
    return None
