"""All parts of a broker that runs."""

from dataclasses import dataclass

from diskless.parts.coordination import Coordination
from diskless.parts.foundation import Foundation
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage
from diskless.parts.tokens import Tokens
from diskless.parts.write_path import WritePath
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.server import KafkaServer


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What `diskless.broker.running_broker` has built."""

    base: Foundation
    storage: Storage
    coordination: Coordination
    writes: WritePath
    reads: ReadPath
    tokens: Tokens
    server: KafkaServer

    @property
    def quotas(self) -> QuotaEnforcer:
        return self.coordination.quotas
