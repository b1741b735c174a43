"""Group `acl`: what rules of access control cost whoever obeys them.

A consumer polls 1,000 topics in which nothing happens, in a fetch session as Java's client does.
The broker's processor time for a poll is compared between two brokers that take turns: one that
lets everybody do everything, and one with 10,000 rules, of which 1,000 name a topic each that the
consumer may read. And the authorizer by itself, with as many rules: names that it is asked about
for the first time, and again.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from bench.requests.fetch import Poller, create_topics, fetch_row, processor_us
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report
from diskless import authorization
from diskless.acls.acl_authorizer import AclAuthorizer
from diskless.acls.acl_meaning import Policy
from diskless.ports import ANONYMOUS, ClientInfo
from metadata import acls

TOPICS: Final = 1_000
RULES: Final = 10_000
POLLS: Final = 300
ROUNDS: Final = 7
TURNS: Final = 50
RULED: Final = {"authorizer": "acl", "allow.everyone.if.no.acl.found": "true"}


class TopicsPoller(Poller):
    """A session over one partition of each of many topics."""

    def __init__(self, bootstrap: str, topic_ids: Sequence[UUID]) -> None:
        super().__init__(bootstrap, topic_ids[0], 1, session=True)
        self._topics = [topic_id.bytes for topic_id in topic_ids]

    def topics(self) -> Sequence[bytes]:
        """As a request names them."""
        return [topic + b"\x02" + fetch_row(0, 0) + b"\0" for topic in self._topics]


def run_acl(report: Report) -> None:
    """A Fetch of TOPICS topics with and without RULES rules; the authorizer by itself."""
    report.step(f"acl: a consumer of {TOPICS:,} topics, {RULES:,} rules")
    with (
        fresh_directory() as directory,
        BenchBroker(directory / "free", {}) as free,
        # Made when the first one runs, so that it finds ports of its own.
        BenchBroker(directory / "bound", RULED) as bound,
    ):
        alone, ruled = _rounds(free, bound)
    report.add(
        "acl_fetch_1000_topics_ratio",
        statistics.median(ruled) / statistics.median(alone),
        bound="≤ 1.02",
        note=f"broker CPU per idle poll {statistics.median(ruled):,.0f} µs ÷ "
        f"{statistics.median(alone):,.0f} µs, fetch sessions",
    )
    cold, warm, changed = authorizer_us()
    report.add("acl_cold_us_per_topic", cold / TOPICS, bound="≤ 2", note=f"{RULES:,} rules")
    report.add("acl_warm_us_per_1000_topics", warm)
    report.add("acl_changed_rule_ms", changed / 1_000, note="the first question after a change")


def _rounds(free: BenchBroker, bound: BenchBroker) -> tuple[Sequence[float], Sequence[float]]:
    names = [f"t{number}" for number in range(TOPICS)]
    ids = [create_topics(one.bootstrap, dict.fromkeys(names, 1)) for one in (free, bound)]
    _make_rules(bound.bootstrap, names)
    with (
        TopicsPoller(free.bootstrap, [ids[0][name] for name in names]) as one,
        TopicsPoller(bound.bootstrap, [ids[1][name] for name in names]) as other,
    ):
        processor_us(free.pid, one, 20)
        processor_us(bound.pid, other, 20)
        rows = [
            (processor_us(free.pid, one, POLLS), processor_us(bound.pid, other, POLLS))
            for _ in range(ROUNDS)
        ]
    return [row[0] for row in rows], [row[1] for row in rows]


def _make_rules(bootstrap: str, names: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    rules = [
        AclBinding(
            ResourceType.TOPIC,
            name,
            ResourcePatternType.LITERAL,
            user,
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for user, some in [
            (f"User:{ANONYMOUS}", names),
            *((f"User:u{number}", names) for number in range(RULES // TOPICS - 1)),
        ]
        for name in some
    ]
    for first in range(0, len(rules), TOPICS):
        for made in admin.create_acls(rules[first : first + TOPICS]).values():
            made.result(60)


def authorizer_us() -> tuple[float, float, float]:
    """Microseconds of TOPICS names that are new, of the same again, and after a changed rule."""
    topic, allow = authorization.ResourceType.TOPIC, acls.Permission.ALLOW
    read, literal = authorization.AclOperation.READ, acls.PatternType.LITERAL
    names = [f"t{number}" for number in range(TOPICS)]
    rules = frozenset(
        acls.AclBinding(topic, name, literal, f"User:u{user}", "*", read, allow)
        for user in range(RULES // TOPICS)
        for name in names
    )
    fewer = rules - {next(iter(rules))}
    now = [rules]
    asked = AclAuthorizer(lambda: now[0], Policy())
    cold: list[float] = []
    warm: list[float] = []
    changed: list[float] = []
    for turn in range(TURNS):
        # Another set of rules, so that no answer is kept.
        now[0] = fewer if turn % 2 else rules
        client = ClientInfo(1, "bench", "127.0.0.1", f"u{turn % (RULES // TOPICS)}")
        started = time.perf_counter()
        asked.denied(client, read, topic, ["none"])
        followed = time.perf_counter()
        asked.denied(client, read, topic, names)
        answered = time.perf_counter()
        asked.denied(client, read, topic, names)
        again = time.perf_counter()
        changed.append((followed - started) * 1e6)
        cold.append((answered - followed) * 1e6)
        warm.append((again - answered) * 1e6)
    return statistics.median(cold), statistics.median(warm), statistics.median(changed)
