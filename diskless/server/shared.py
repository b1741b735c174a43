"""What all connections of a server have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from diskless.audit.audit_log import SessionAudit
from diskless.listeners.lingering import Lingering
from diskless.loop.read_turns import ReadTurns
from diskless.loop.turns import Turns
from diskless.quotas.request_meter import ClientLimits
from diskless.sasl.login import LoginRules
from diskless.server.handlers import HandlerTasks
from diskless.server.problem_log import ProblemLog
from diskless.server.registry import ApiRegistry
from diskless.server.request_budget import RequestBudget
from diskless.server.response_budget import ResponseBudget
from diskless.server.server_metrics import ServerMetrics
from diskless.server.server_settings import ServerSettings
from wal.chunks.buffer import BufferPool
from wal.clock import Clock
from wal.write_path.seal_policy import Arrivals

_Connection = TypeVar("_Connection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Generic[_Connection]):
    """What all connections of a server have in common."""

    made: Callable[[_Connection], None]
    lost: Callable[[_Connection], None]
    """Told when it has its transport, and when that is gone."""
    apis: ApiRegistry
    settings: ServerSettings
    pool: BufferPool
    clock: Clock
    metrics: ServerMetrics
    budget: RequestBudget
    responses: ResponseBudget
    arrivals: Arrivals
    logins: Mapping[str, LoginRules]
    """By the name of the listener, where clients must log in."""
    lingering: Lingering
    turns: Turns
    read_turns: ReadTurns
    problems: ProblemLog
    handlers: HandlerTasks
    limits: ClientLimits
    audit: SessionAudit
    processor_time: Callable[[], float]
