"""What a worker is told when it is born, beside what it has from the process that forked it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from diskless.workers.relay import RelayedApi


@dataclass(frozen=True, slots=True, kw_only=True)
class BirthFacts:
    """Facts that the head found out after the configuration was read."""

    number: int
    """From 1 on; also the lane of its chunks."""
    life: int
    """No other worker has had it, of this number or another, since the head began."""
    count: int
    """How many workers there are."""
    node_id: int
    cluster_id: str
    data: str
    addresses: Sequence[tuple[str, int]]
    """Of the listeners, in the order of the configuration."""
    apis: Sequence[RelayedApi]
    """All that the head serves."""

    def encode(self) -> bytes:
        facts = {
            "number": self.number,
            "life": self.life,
            "count": self.count,
            "node_id": self.node_id,
            "cluster_id": self.cluster_id,
            "data": self.data,
            "addresses": list(self.addresses),
            "apis": [list(api) for api in self.apis],
        }
        return json.dumps(facts).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        facts = json.loads(data)
        apis = [RelayedApi(*fields) for fields in facts.pop("apis")]
        addresses = [(host, port) for host, port in facts.pop("addresses")]
        return cls(**facts, addresses=addresses, apis=apis)
