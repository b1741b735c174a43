"""Random lives of a KIP-848 group: members of both protocols come, go, fall silent, miss answers.

Topics come, go and grow; stores fail; assignments take long; brokers restart from whatever was
stored.

The members are simulated clients that take what they are told at once, and give up what they are
told to whenever they like. Whatever happens:

- no partition is in the hands of two members, where one has it from when it was told until it has
  said that it has not, or was removed;
- no request is answered twice, and none before what it rests on was stored;
- epochs only grow;
- when members are left alone they come to rest, and have all there is, each partition once.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskless.groups.assignors.assignors import ASSIGNORS
from diskless.groups.classic.subscription import read_assignment
from diskless.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from diskless.groups.consumer_state import (
    StoredConsumerGroup,
    decode_consumer_group,
    encode_consumer_group,
)
from diskless.groups.errors import (
    FencedInstanceId,
    GroupCoordinatorUnavailable,
    NotGroupCoordinator,
    RebalanceInProgress,
    UnreleasedInstanceId,
)
from diskless.groups.group_machine import Assign, Removed, Store
from diskless.groups.requests import (
    ConsumerHeartbeatAnswer,
    GroupProtocol,
    JoinedGroup,
    SyncedGroup,
)
from diskless.loop.long_work import done_at_once
from tests.support.groups.consumer_requests import SETTINGS as DEFAULTS
from tests.support.groups.consumer_requests import (
    NumberedTopics,
    consumer_heartbeat,
    new_consumer_group,
)
from tests.support.groups.group_requests import (
    CLIENT,
    join_request,
    subscription_with_owned,
    sync_request,
)
from tests.support.profiles import examples
from wal.errors import AppendTooLarge, DisklessError

SIZE_MAX = 5
SETTINGS = replace(DEFAULTS, consumer_max_size=SIZE_MAX)
SESSION_S = SETTINGS.consumer_session_timeout_ms / 1000
REBALANCE_MS = 5_000
SUBSCRIPTIONS: list[tuple[tuple[str, ...], str | None]] = [
    (("a",), None),
    (("a", "b"), None),
    (("c",), "a|b"),
    ((), ".*"),
]


class Outcome(Enum):
    """What comes of a store."""

    STORED = "it is durable"
    FAILED = "nothing happened"
    UNHEARD = "it is durable, but nobody hears of it"
    REFUSED = "it never will be durable"


OUTCOMES = st.sampled_from([Outcome.STORED] * 3 + [*Outcome])
ERRORS = {
    Outcome.STORED: None,
    Outcome.FAILED: GroupCoordinatorUnavailable("the store is away"),
    Outcome.UNHEARD: GroupCoordinatorUnavailable("the store does not answer"),
    Outcome.REFUSED: AppendTooLarge("4 MiB"),
}

Held = set[tuple[UUID, int]]


def by_topic(held: Held) -> dict[UUID, frozenset[int]]:
    topics: dict[UUID, frozenset[int]] = {}
    for topic_id, partition in held:
        topics[topic_id] = topics.get(topic_id, frozenset()) | {partition}
    return topics


@dataclass(eq=False)
class Client:
    """A consumer as far as the group protocols go."""

    member_id: str
    instance_id: str | None
    names: tuple[str, ...]
    pattern: str | None
    is_classic: bool = False
    is_eager: bool = False
    epoch: int = 0
    has: Held = field(default_factory=set)
    told: Held = field(default_factory=set)
    said: Held | None = None
    """What it last said that it has, and was heard."""
    must_join: bool = True
    """Classic: join before anything else."""
    must_sync: bool = False
    waits: int | None = None

    def lose_everything(self) -> None:
        self.has, self.told, self.said = set(), set(), None
        self.epoch = 0
        self.must_join, self.must_sync = True, False


class ConsumerGroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.topics = NumberedTopics()
        self.topics.create("a", 3)
        self.group = new_consumer_group(self.topics, SETTINGS)
        self.clients: list[Client] = []
        self.parked: dict[int, tuple[Client, Held | None]] = {}
        self.stores: list[Store] = []
        self.assignments: list[Assign] = []
        self.assigning_takes_long = False
        self.durable: StoredConsumerGroup | None = None
        self.numbers = itertools.count()
        self.group_epoch = 0

    # -- topics ---------------------------------------------------------------------------------

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 5))
    def topics_change(self, name: str, count: int) -> None:
        known = self.topics.topic(name)
        if known is None:
            self.topics.create(name, count)
        elif count > known.partition_count:
            self.topics.grow(name, count)
        elif count == known.partition_count:
            self.topics.delete(name)

    # -- what clients do ------------------------------------------------------------------------

    @rule(
        subscription=st.sampled_from(SUBSCRIPTIONS),
        instance_id=st.sampled_from([None] * 5 + ["i-1", "i-2"]),
        kind=st.sampled_from(["consumer", "consumer", "consumer", "eager", "cooperative"]),
    )
    def start(
        self, subscription: tuple[tuple[str, ...], str | None], instance_id: str | None, kind: str
    ) -> None:
        names, pattern = subscription
        is_classic = kind != "consumer"
        member_id = "" if is_classic else f"m-{next(self.numbers)}"
        if is_classic:
            names, pattern = names or ("a",), None
        client = Client(member_id, instance_id, names, pattern, is_classic, kind == "eager")
        self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_lost=st.booleans(), says_all=st.booleans())
    def heartbeat(self, data: Any, is_lost: bool, says_all: bool) -> None:
        client = self._client(data)
        if client.waits is None:
            self._go_on(client, is_lost=is_lost, says_all=says_all)

    @precondition(lambda self: self.clients)
    @rule(
        rounds=st.integers(1, 4),
        gives_up=st.sampled_from([False, False, True]),
        is_lost=st.sampled_from([False, False, True]),
        outcome=OUTCOMES,
    )
    def everybody_goes_on(
        self, rounds: int, gives_up: bool, is_lost: bool, outcome: Outcome
    ) -> None:
        """Not all give up what they should, hear what they are told, or are told anything."""
        for number in range(rounds):
            for place, client in enumerate([*self.clients]):
                is_odd = (number + place) % 2 == 1
                if gives_up and is_odd:
                    self._give_up(client)
                if client.waits is None:
                    self._go_on(client, is_lost=is_lost and is_odd)
                while self.stores:
                    self.store(outcome if is_odd else Outcome.STORED)
                if is_odd:
                    self.finish_assignments()

    def _go_on(self, client: Client, *, is_lost: bool = False, says_all: bool = False) -> None:
        if client.is_classic:
            self._classic_step(client, is_lost=is_lost)
            return
        joins = client.epoch == 0
        says_all = says_all or joins or client.said is None
        says = client.has != client.said or says_all
        assert not (joins and client.has)
        request = consumer_heartbeat(
            client.member_id,
            client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            topic_names=client.names if says_all else None,
            topic_pattern=(client.pattern or "") if says_all else None,
            owned=by_topic(client.has) if says else None,
        )
        ticket = self._park(client, set(client.has) if says else client.said, is_lost=is_lost)
        self.group.consumer_heartbeat(ticket, request, CLIENT, self.now)
        self._settle()

    def _classic_step(self, client: Client, *, is_lost: bool) -> None:
        if client.must_join:
            if client.is_eager:
                client.has, client.told = set(), set()
            names = {
                name: [p for topic_id, p in client.has if topic_id == topic.topic_id]
                for name, topic in self.topics.known.items()
            }
            metadata = subscription_with_owned(client.names, names)
            request = join_request(
                client.member_id,
                instance_id=client.instance_id,
                rebalance_timeout_ms=REBALANCE_MS,
                protocols=[GroupProtocol("range", metadata)],
            )
            ticket = self._park(client, None, is_lost=is_lost)
            new_id = f"c-{next(self.numbers)}"
            self.group.join(ticket, request, CLIENT, self.now, new_id=new_id)
        elif client.must_sync:
            ticket = self._park(client, None, is_lost=is_lost)
            request_of_sync = sync_request(
                client.member_id, client.epoch, instance_id=client.instance_id
            )
            self.group.sync(ticket, request_of_sync, self.now)
        else:
            error = self.group.heartbeat(
                client.epoch, client.member_id, client.instance_id, self.now
            )
            if isinstance(error, RebalanceInProgress):
                client.must_join = True
            elif error is not None:
                self._starts_over(client, error)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        self._give_up(self._client(data))

    def _give_up(self, client: Client) -> None:
        """What it was told to."""
        if client.has - client.told and client.is_classic:
            client.must_join = True
        client.has &= client.told

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    def subscribe_otherwise(self, data: Any, subscription: Any) -> None:
        client = self._client(data)
        client.names, client.pattern = subscription
        client.said = None
        if client.is_classic:
            client.names, client.pattern = client.names or ("a",), None
            client.must_join = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data: Any, for_good: bool) -> None:
        client = self._client(data)
        self.clients.remove(client)
        client.has.clear()
        if client.is_classic:
            self.group.leave(client.member_id, None, self.now)
        else:
            epoch = -1 if for_good or client.instance_id is None else -2
            request = consumer_heartbeat(client.member_id, epoch, instance_id=client.instance_id)
            ticket = self._park(client, None, is_lost=True)
            self.group.consumer_heartbeat(ticket, request, CLIENT, self.now)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def vanish(self, data: Any) -> None:
        """It goes on having what it has until the group has given it up."""
        self.clients.remove(self._client(data))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def start_over(self, data: Any) -> None:
        """The process lives on, but the consumer is closed and opened."""
        client = self._client(data)
        client.lose_everything()
        client.waits = None
        if client.is_classic:
            client.member_id = ""

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def change_protocol(self, data: Any) -> None:
        client = self._client(data)
        client.lose_everything()
        client.waits = None
        client.is_classic = not client.is_classic
        client.member_id = "" if client.is_classic else f"m-{next(self.numbers)}"
        if client.is_classic:
            client.names, client.pattern = client.names or ("a",), None

    # -- what else happens ----------------------------------------------------------------------

    @precondition(lambda self: self.stores)
    @rule(outcome=OUTCOMES)
    def store(self, outcome: Outcome = Outcome.STORED) -> None:
        effect = self.stores.pop(0)
        if outcome in (Outcome.STORED, Outcome.UNHEARD):
            assert isinstance(effect.group, StoredConsumerGroup)
            self.durable = effect.group
        self.group.stored(effect.serial, ERRORS[outcome], self.now)
        if outcome is Outcome.REFUSED:
            self.group_epoch = self.group.generation_id
        self._settle()

    @rule(takes_long=st.booleans())
    def assignments_take(self, takes_long: bool) -> None:
        self.assigning_takes_long = takes_long
        self.finish_assignments()

    @precondition(lambda self: self.assignments)
    @rule()
    def finish_assignments(self) -> None:
        """What is begun meanwhile takes as long again."""
        for effect in [*self.assignments]:
            self._finish(effect)

    def _finish(self, effect: Assign) -> None:
        self.assignments.remove(effect)
        self.group.assigned(effect.serial, done_at_once(effect.steps), self.now)
        self._settle()

    @rule(seconds=st.sampled_from([0.5, 4.0, REBALANCE_MS / 1000, SESSION_S + 1]))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while self.group.wakes_at <= until:
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self._settle()
            while self.stores:
                self.store()
        self.now = until

    @rule(was_stored=st.booleans())
    def coordinator_moves(self, was_stored: bool) -> None:
        """What was under way may have become durable without anybody having heard of it."""
        for effect in self.stores if was_stored else ():
            assert isinstance(effect.group, StoredConsumerGroup)
            self.durable = effect.group
        self.stores.clear()
        late, self.assignments = self.assignments, []
        self.group.close(NotGroupCoordinator("moved"))
        self._settle()
        for effect in late:
            self.group.assigned(effect.serial, done_at_once(effect.steps), self.now)
            assert not self.group.effects
        assert not self.parked
        if self.durable is None:
            self.group = new_consumer_group(self.topics, SETTINGS)
        else:
            stored = decode_consumer_group(encode_consumer_group(self.durable), "group")
            assert stored == self.durable
            self.group = ConsumerGroup.restored(
                "group", stored, self.now, self.topics, settings=SETTINGS, assignors=ASSIGNORS
            )
        self.group_epoch = self.group.generation_id

    @precondition(lambda self: self.clients)
    @rule()
    def all_come_to_rest(self) -> None:
        """Left alone, members have all that they can have after a few heartbeats."""
        # Who has gone without a word is removed, while the others send heartbeats.
        for _ in range(int(SESSION_S)):
            self._round()
            self.time_passes(2.0)
        for _ in range(10):
            self._round()
        for client in self.clients:
            assert client.has == client.told
        members = self.group.snapshot().members
        assert self.group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
        assert all(member.assigned == member.target for member in members)
        given = Counter(
            (topic_id, partition)
            for member in members
            for topic_id, partitions in member.assigned.items()
            for partition in partitions
        )
        wanted = {
            (topic.topic_id, partition)
            for topic in self.topics.known.values()
            if self.group.reads(topic.name)
            for partition in range(topic.partition_count)
        }
        assert given == dict.fromkeys(wanted, 1)

    def _round(self) -> None:
        for client in [*self.clients]:
            self._give_up(client)
            client.waits = None
            self._go_on(client)
            self._finish_everything()

    def _finish_everything(self) -> None:
        while self.stores or self.assignments:
            self.finish_assignments()
            while self.stores:
                self.store()

    # -- how it is done -------------------------------------------------------------------------

    def _client(self, data: Any) -> Client:
        return data.draw(st.sampled_from(self.clients))

    def _park(self, client: Client, said: Held | None, *, is_lost: bool) -> int:
        ticket = next(self.numbers)
        self.parked[ticket] = client, said
        client.waits = None if is_lost else ticket
        if is_lost:
            client.said = None
        return ticket

    def _settle(self) -> None:
        effects = [*self.group.effects]
        self.group.effects.clear()
        for effect in effects:
            if isinstance(effect, Store):
                assert not self.stores, "one at a time"
                self.stores.append(effect)
                continue
            if isinstance(effect, Assign):
                assert not self.assignments, "one at a time"
                self.assignments.append(effect)
                continue
            if isinstance(effect, Removed):
                continue
            client, said = self.parked.pop(effect.ticket)  # a second answer would be a KeyError
            if client.waits != effect.ticket:
                continue  # it has given up waiting
            client.waits = None
            if isinstance(effect.answer, ConsumerHeartbeatAnswer):
                self._heard(client, said, effect.answer)
            elif isinstance(effect.answer, JoinedGroup):
                self._joined(client, effect.answer)
            elif isinstance(effect.answer, SyncedGroup):
                self._synced(client, effect.answer)
        assert self.group.generation_id >= self.group_epoch
        self.group_epoch = self.group.generation_id
        if not self.assigning_takes_long:
            self.finish_assignments()

    def _heard(self, client: Client, said: Held | None, answer: ConsumerHeartbeatAnswer) -> None:
        if isinstance(answer.error, GroupCoordinatorUnavailable | NotGroupCoordinator):
            client.said = None
        elif answer.error is not None:
            self._starts_over(client, answer.error)
        else:
            self._is_durable(client.member_id, answer.member_epoch)
            client.epoch = answer.member_epoch
            client.said = said
            if answer.assignment is not None:
                self._take(client, answer.assignment)

    def _joined(self, client: Client, answer: JoinedGroup) -> None:
        if answer.error is None:
            self._is_durable(answer.member_id, answer.generation_id)
            client.member_id, client.epoch = answer.member_id, answer.generation_id
            client.must_join, client.must_sync = False, True
        elif not isinstance(answer.error, GroupCoordinatorUnavailable | NotGroupCoordinator):
            self._starts_over(client, answer.error)

    def _synced(self, client: Client, answer: SyncedGroup) -> None:
        if isinstance(answer.error, RebalanceInProgress):
            client.must_join = True
        elif answer.error is None:
            client.must_sync = False
            assignment = read_assignment(answer.assignment)
            assert assignment is not None
            known = {name: topic.topic_id for name, topic in self.topics.known.items()}
            self._take(client, {known[name]: indexes for name, indexes in assignment.items()})
        elif not isinstance(answer.error, GroupCoordinatorUnavailable | NotGroupCoordinator):
            self._starts_over(client, answer.error)

    def _starts_over(self, client: Client, error: DisklessError) -> None:
        client.lose_everything()
        if client.is_classic:
            client.member_id = ""
        if isinstance(error, FencedInstanceId | UnreleasedInstanceId):
            # Another one has its instance id: it ends.
            self.clients.remove(client)

    def _take(self, client: Client, assignment: Any) -> None:
        client.told = {(topic_id, p) for topic_id, ps in assignment.items() for p in ps}
        client.has |= client.told

    def _is_durable(self, member_id: str, member_epoch: int) -> None:
        assert self.durable is not None
        stored = {member.member_id: member for member in self.durable.members}
        if member_id in stored:
            assert stored[member_id].member_epoch >= member_epoch

    # -- what must always be so -----------------------------------------------------------------

    @invariant()
    def no_partition_is_in_two_hands(self) -> None:
        members = {member.member_id: member for member in self.group.snapshot().members}
        hands = Counter(
            place
            for client in self.clients
            if client.member_id in members
            and (client.is_classic == (members[client.member_id].classic is not None))
            for place in client.has
        )
        assert all(count == 1 for count in hands.values()), hands

    @invariant()
    def the_group_is_not_too_large(self) -> None:
        assert len(self.group.snapshot().members) <= SIZE_MAX

    @invariant()
    def an_empty_group_is_unused_or_something_will_happen(self) -> None:
        group = self.group
        will_happen = self.stores or self.assignments or group.wakes_at < math.inf
        assert not group.is_empty or group.is_unused or will_happen

    def teardown(self) -> None:
        self._finish_everything()
        if self.clients:
            self.all_come_to_rest()
        self.clients.clear()
        self.time_passes(SESSION_S * 3)
        self._finish_everything()
        assert not self.parked
        assert self.group.is_unused


TestConsumerGroupLife = ConsumerGroupLife.TestCase
TestConsumerGroupLife.settings = examples(1, steps=50, allow=[HealthCheck.filter_too_much])
