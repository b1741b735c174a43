"""Random lives of a classic group: members come, go, fall silent; stores fail; brokers restart.

The members are simulated clients that do what clients do with the answers they get. Whatever
happens:

- no request is answered twice, and every parked one by its deadline;
- what was assigned in one generation overlaps for no two members, also over restarts;
- a stable generation has every partition exactly once, and was stored;
- the generation grows;
- when everybody falls silent the group ends up empty.
"""

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskless.groups import errors as group_errors
from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic.rebalance import NEW_MEMBER_TIMEOUT_S, GroupState
from diskless.groups.classic_state import (
    StoredClassicGroup,
    decode_classic_group,
    encode_classic_group,
)
from diskless.groups.group_machine import Removed, Store
from diskless.groups.requests import GroupProtocol, JoinedGroup, JoinGroup, SyncedGroup
from tests.support.groups.group_requests import CLIENT, join_request, subscription, sync_request
from tests.support.profiles import examples

PARTITIONS = 7
SESSIONS_MS = (6_000, 10_000)
REBALANCES_MS = (1_000, 5_000)
PATIENCE_S = max(REBALANCES_MS) / 1000
INITIAL_DELAY_S = 3.0
SIZE_MAX = 4
PROTOCOLS = [
    (GroupProtocol("range", subscription("a")),),
    (GroupProtocol("range", subscription("a", "b")), GroupProtocol("sticky", b"?")),
    (GroupProtocol("sticky", b"own"), GroupProtocol("range", subscription("a"))),
]


@dataclass(eq=False)
class Client:
    """A consumer as far as the group protocol goes."""

    instance_id: str | None
    needs_member_id: bool
    member_id: str = ""
    generation_id: int = -1
    members: list[str] = field(default_factory=list)
    """Of its generation, if it leads."""
    is_synced: bool = False
    waits: int | None = None
    """The ticket of its parked request."""


@dataclass(eq=False)
class Parked:
    client: Client
    member_id: str
    since: float
    generation_id: int
    is_join: bool


class ClassicGroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.group = ClassicGroup("group", initial_delay_s=INITIAL_DELAY_S, size_max=SIZE_MAX)
        self.clients: list[Client] = []
        self.parked: dict[int, Parked] = {}
        self.stores: list[Store] = []
        self.durable: StoredClassicGroup | None = None
        self.assigned: dict[int, dict[str, bytes]] = {}
        """What members were told, by generation."""
        self.numbers = itertools.count()
        self.generation_id = 0

    # -- what clients do ------------------------------------------------------------------------

    @rule(needs_member_id=st.booleans(), instance_id=st.sampled_from([None] * 5 + ["i-1", "i-2"]))
    def start(self, needs_member_id: bool, instance_id: str | None) -> None:
        """With an instance id that is in use it is the same client, restarted, or an impostor."""
        self.clients.append(Client(instance_id, needs_member_id))

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        session_ms=st.sampled_from(SESSIONS_MS),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
        protocols=st.sampled_from(PROTOCOLS),
        may_skip=st.booleans(),
    )
    def join(self, data, session_ms, rebalance_ms, protocols, may_skip) -> None:
        client = self._client(data)
        request = join_request(
            client.member_id,
            instance_id=client.instance_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocols=protocols,
            needs_member_id=client.needs_member_id,
            may_skip_assignment=may_skip,
        )
        self._join(client, request)

    def _join(self, client: Client, request: JoinGroup) -> None:
        ticket = self._park(client, -1, is_join=True)
        self.group.join(ticket, request, CLIENT, self.now, new_id=f"m-{next(self.numbers)}")
        self._settle()

    def _sync(self, client: Client, generation_id: int) -> None:
        assignments = {
            member: bytes(range(place, PARTITIONS, len(client.members)))
            for place, member in enumerate(client.members)
        }
        ticket = self._park(client, generation_id, is_join=False)
        request = sync_request(
            client.member_id, generation_id, assignments, instance_id=client.instance_id
        )
        self.group.sync(ticket, request, self.now)
        self._settle()

    @precondition(lambda self: any(client.generation_id >= 0 for client in self.clients))
    @rule(data=st.data(), lies=st.booleans())
    def sync(self, data, lies) -> None:
        client = self._client(data)
        self._sync(client, client.generation_id - (1 if lies else 0))

    @precondition(lambda self: self.clients)
    @rule(
        rounds=st.integers(1, 5),
        seconds=st.sampled_from([0.0, 0.5, 3.5]),
        stores=st.sampled_from([True, True, False]),
    )
    def everybody_goes_on(self, rounds: int, seconds: float, stores: bool) -> None:
        for _ in range(rounds):
            self._go_on()
            self._advance(seconds)
            while stores and self.stores:
                self.store(works=True)

    def _go_on(self) -> None:
        """Every client does what it has to do next."""
        for client in list(self.clients):
            if client.waits in self.parked:
                continue
            if client.generation_id < 0:
                self._join(
                    client,
                    join_request(
                        client.member_id,
                        instance_id=client.instance_id,
                        needs_member_id=client.needs_member_id,
                        rebalance_timeout_ms=REBALANCES_MS[-1],
                        protocols=PROTOCOLS[0],
                    ),
                )
            elif not client.is_synced:
                self._sync(client, client.generation_id)
            else:
                self._heartbeat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data) -> None:
        self._heartbeat(self._client(data))

    def _heartbeat(self, client: Client) -> None:
        error = self.group.heartbeat(
            client.generation_id, client.member_id, client.instance_id, self.now
        )
        self._settle()
        if isinstance(error, group_errors.UnknownMember):
            client.member_id = ""
        if error is not None:
            client.generation_id = -1

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data) -> None:
        client = self._client(data)
        self.group.leave(client.member_id, client.instance_id, self.now)
        self.clients.remove(client)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def vanish(self, data) -> None:
        self.clients.remove(self._client(data))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), generation_id=st.integers(-1, 3))
    def commit(self, data, generation_id) -> None:
        client = self._client(data)
        self.group.check_commit(generation_id, client.member_id, client.instance_id, self.now)
        self._settle()

    # -- what else happens ----------------------------------------------------------------------

    @precondition(lambda self: self.stores)
    @rule(works=st.sampled_from([True, True, True, False]))
    def store(self, works: bool) -> None:
        effect = self.stores.pop(0)
        if works:
            self.durable = effect.group
        error = None if works else group_errors.GroupCoordinatorUnavailable("the store is away")
        self.group.stored(effect.serial, error, self.now)
        self._settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, 11.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self._advance(seconds)

    @precondition(lambda self: self.durable is not None or self.stores)
    @rule(were_stored=st.integers(0, 3))
    def coordinator_moves(self, were_stored: int) -> None:
        """What was under way may have become durable without anybody having heard of it."""
        for effect in self.stores[:were_stored]:
            self.durable = effect.group
        self.stores.clear()
        self.group.close(group_errors.NotGroupCoordinator("moved"))
        self._settle()
        assert not self.parked
        if self.durable is None:
            self.group = ClassicGroup("group", initial_delay_s=INITIAL_DELAY_S, size_max=SIZE_MAX)
        else:
            stored = decode_classic_group(encode_classic_group(self.durable), "group")
            assert stored == self.durable
            self.group = ClassicGroup.restored(
                "group", stored, self.now, initial_delay_s=INITIAL_DELAY_S, size_max=SIZE_MAX
            )
        self.generation_id = self.group.generation_id

    # -- how it is done -------------------------------------------------------------------------

    def _client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    def _park(self, client: Client, generation_id: int, *, is_join: bool) -> int:
        ticket = next(self.numbers)
        self.parked[ticket] = Parked(client, client.member_id, self.now, generation_id, is_join)
        client.waits = ticket
        return ticket

    def _advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.group.wakes_at <= until:
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self._settle()
            self.overdue()
        self.now = until

    def _settle(self) -> None:
        effects = [*self.group.effects]
        self.group.effects.clear()
        for effect in effects:
            if isinstance(effect, Store):
                self.stores.append(effect)
                continue
            if isinstance(effect, Removed):
                continue
            parked = self.parked.pop(effect.ticket)  # a second answer would be a KeyError
            if isinstance(effect.answer, JoinedGroup):
                self._joined(parked, effect.answer)
            else:
                self._synced(parked, effect.answer)
        assert self.group.generation_id >= self.generation_id
        self.generation_id = self.group.generation_id

    def _joined(self, parked: Parked, answer: JoinedGroup) -> None:
        assert parked.is_join
        client = parked.client
        if isinstance(answer.error, group_errors.MemberIdRequired):
            client.member_id = answer.member_id
        elif isinstance(answer.error, group_errors.UnknownMember):
            client.member_id = ""
            client.generation_id = -1
        elif answer.error is None:
            assert answer.member_id in self.group.member_ids
            assert answer.generation_id == self.group.generation_id
            assert answer.protocol_name in ("range", "sticky")
            client.member_id = answer.member_id
            client.generation_id = answer.generation_id
            client.is_synced = False
            client.members = []
            if answer.leader == answer.member_id and not answer.skip_assignment:
                client.members = [member.member_id for member in answer.members]
                assert client.member_id in client.members

    def _synced(self, parked: Parked, answer: SyncedGroup) -> None:
        assert not parked.is_join
        if answer.error is not None:
            parked.client.generation_id = -1
        else:
            parked.client.is_synced = True
            told = self.assigned.setdefault(parked.generation_id, {})
            told[parked.member_id] = answer.assignment
            assert self.group.state is GroupState.STABLE
            assert parked.generation_id == self.group.generation_id
            assert self.durable is not None
            assert self.durable.generation_id == parked.generation_id
            stored = {member.member_id: member.assignment for member in self.durable.members}
            assert stored.get(parked.member_id, answer.assignment) == answer.assignment

    # -- what must always be so -----------------------------------------------------------------

    @invariant()
    def overdue(self) -> None:
        for parked in self.parked.values():
            waits_for_store = bool(self.stores) and parked.is_join
            assert waits_for_store or self.now - parked.since <= PATIENCE_S

    @invariant()
    def every_partition_has_one_owner(self) -> None:
        """Static members pass on what they have to their successors, so it may be told twice."""
        for told in self.assigned.values():
            distinct = set(told.values()) - {b""}
            partitions = [partition for part in distinct for partition in part]
            assert len(partitions) == len(set(partitions))

    @invariant()
    def a_stable_generation_has_all_partitions_once(self) -> None:
        if self.group.state is GroupState.STABLE:
            given = [p for member in self.group.members() for p in member.assignment]
            assert sorted(given) == [*range(PARTITIONS)]

    @invariant()
    def the_group_is_not_too_large(self) -> None:
        assert len(self.group.member_ids) <= SIZE_MAX * 2
        if self.group.state is GroupState.STABLE:
            assert len(self.group.member_ids) <= SIZE_MAX + 2  # static members that are away

    def teardown(self) -> None:
        while self.stores:
            self.store(works=True)
        for _ in range(3):
            self._advance(NEW_MEMBER_TIMEOUT_S)
            while self.stores:
                self.store(works=True)
        assert not self.parked
        assert self.group.is_unused
        assert not self.group.member_ids


TestClassicGroupLife = ClassicGroupLife.TestCase
TestClassicGroupLife.settings = examples(2, steps=60, allow=[HealthCheck.filter_too_much])
