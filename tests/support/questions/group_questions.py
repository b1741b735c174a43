"""What is asked of a broker in each version about groups."""

from datetime import timedelta
from uuid import UUID

from tests.support.questions.asker import (
    JOIN_GROUP,
    MEMBER_ID_REQUIRED,
    NOTHING,
    OFFSET_COMMIT,
    SYNC_GROUP,
    TOPIC,
    Asker,
    a_name,
    a_number,
)


class GroupQuestions(Asker):
    """Groups of either protocol, and their offsets."""

    def _join(self, group: str, version: int = 5) -> tuple[str, int]:
        """(member id, generation) of the only member."""
        values = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\x00\x00" + b"\x00" * 8}],
            "reason": "a test",
        }
        answer = self._ask(JOIN_GROUP, version, **values, member_id="")
        if version >= 4:
            assert answer.error_code == MEMBER_ID_REQUIRED
            answer = self._ask(JOIN_GROUP, version, **values, member_id=answer.member_id)
        assert (answer.error_code, answer.leader) == (NOTHING, answer.member_id)
        assert [row.member_id for row in answer.members] == [answer.member_id]
        return answer.member_id, answer.generation_id

    def _sync(self, group: str, version: int = 3) -> tuple[str, int]:
        member, generation = self._join(group)
        answer = self._ask(
            SYNC_GROUP,
            version,
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": member, "assignment": b"all of it"}],
        )
        assert (answer.error_code, bytes(answer.assignment)) == (NOTHING, b"all of it")
        return member, generation

    def join_group(self, version: int) -> None:
        self._join(a_name("group"), version)

    def sync_group(self, version: int) -> None:
        self._sync(a_name("group"), version)

    def heartbeat(self, version: int) -> None:
        group = a_name("group")
        member, generation = self._sync(group)
        answer = self._ask(12, version, group_id=group, generation_id=generation, member_id=member)
        assert answer.error_code == NOTHING

    def leave_group(self, version: int) -> None:
        group = a_name("group")
        member, _ = self._sync(group)
        answer = self._ask(
            13,
            version,
            group_id=group,
            member_id=member,
            members=[{"member_id": member, "group_instance_id": None, "reason": "a test"}],
        )
        assert answer.error_code == NOTHING
        if version >= 3:
            assert [(row.member_id, row.error_code) for row in answer.members] == [
                (member, NOTHING)
            ]

    def _commit(self, group: str, version: int = 8) -> None:
        asked = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "a note",
        }
        answer = self._ask(
            OFFSET_COMMIT,
            version,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[{**self._topic(), "partitions": [asked]}],
        )
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == NOTHING

    def offset_commit(self, version: int) -> None:
        self._commit(a_name("group"), version)

    def offset_fetch(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        if version < 8:
            topics = [{"name": TOPIC, "partition_indexes": [0]}]
            answer = self._ask(9, version, group_id=group, topics=topics, require_stable=True)
            (topic,) = answer.topics
        else:
            asked = {
                "group_id": group,
                "member_id": None,
                "member_epoch": -1,
                "topics": [{**self._topic(), "partition_indexes": [0]}],
            }
            answer = self._ask(9, version, groups=[asked], require_stable=True)
            (found,) = answer.groups
            assert (found.group_id, found.error_code) == (group, NOTHING)
            (topic,) = found.topics
        (partition,) = topic.partitions
        assert (partition.error_code, partition.committed_offset) == (NOTHING, 7)
        assert partition.metadata == "a note"

    def offset_delete(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        answer = self._ask(
            47,
            version,
            group_id=group,
            topics=[{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (answer.error_code, partition.error_code) == (NOTHING, NOTHING)

    def describe_groups(self, version: int) -> None:
        group = a_name("group")
        member, _ = self._sync(group)
        answer = self._ask(15, version, groups=[group], include_authorized_operations=True)
        (found,) = answer.groups
        assert (found.group_id, found.error_code, found.group_state) == (group, NOTHING, "Stable")
        assert [row.member_id for row in found.members] == [member]

    def list_groups(self, version: int) -> None:
        group = a_name("group")
        self._sync(group)
        answer = self._ask(16, version, states_filter=["Stable"], types_filter=["classic"])
        assert answer.error_code == NOTHING
        assert group in {row.group_id for row in answer.groups}

    def delete_groups(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        answer = self._ask(42, version, groups_names=[group])
        assert [(row.group_id, row.error_code) for row in answer.results] == [(group, NOTHING)]

    def consumer_group_heartbeat(self, version: int) -> None:
        group, member = a_name("group"), str(UUID(int=a_number() + 1))
        self._beat(group, member, version)

    def _beat(self, group: str, member: str, version: int) -> None:
        answer = self._ask(
            68,
            version,
            group_id=group,
            member_id=member,
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=timedelta(seconds=10),
            subscribed_topic_names=(TOPIC,),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=(),
        )
        assert (int(answer.error_code), answer.member_epoch > 0) == (NOTHING, True)
        assert version == 0 or answer.member_id == member
        (assigned,) = answer.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (self._topic_id, (0,))

    def consumer_group_describe(self, version: int) -> None:
        group, member = a_name("group"), str(UUID(int=a_number() + 1))
        self._beat(group, member, 1)
        answer = self._ask(69, version, group_ids=(group,), include_authorized_operations=False)
        (found,) = answer.groups
        assert (found.group_id, int(found.error_code)) == (group, NOTHING)
        assert [row.member_id for row in found.members] == [member]
