"""What every API in every version tells a user with few rights: as Kafka does, and no more.

`refusals_of_kafka.json` has what Kafka's own brokers tell; `support.security.refused_requests`
says who asks, and for what. `make test` compares ours with that; `make test-all` starts those
brokers, and compares what they tell now with the file. With REFUSALS_WRITTEN=1 it writes the file.

The file has an entry for each question, and in it one for each user: what was told, and in which
versions. Names stand in place of ids, and lists have an order, so that it reads the same each time.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import KAFKA_VERSIONS, KafkaTools
from tests.support.clients.kafka_broker import kafka_broker
from tests.support.ports import own_port
from tests.support.security.refused_requests import (
    QUESTIONS,
    Question,
    Seat,
    everything_told,
    told_of_names,
)
from tests.support.security.refused_world import PASSWORD, USERS, World

pytestmark = pytest.mark.clients

FILE: Final = Path(__file__).with_name("refusals_of_kafka.json")
WRITES: Final = bool(os.environ.get("REFUSALS_WRITTEN"))
FIRST_KEY_BETWEEN_BROKERS: Final = 93
ASKS_NOBODY: Final = {17, 18, 36}
"""Served to who is not logged in."""
TOLD_OTHERWISE: Final[Mapping[tuple[str, str], str]] = {
    ("0 no id", ""): "a refused topic is told before it is asked what its batch has to have",
    ("68 groups", "spare"): "a member of a group that is not there is UNKNOWN_MEMBER_ID: it joins",
}
"""What is answered differently, and why. The first is refused by both, the second is allowed."""

Told = dict[str, dict[str, dict[str, Any]]]
"""By question, user, and version with the name it is asked for."""


def asked(question: Question, version: int, names: Sequence[str]) -> str:
    return f"v{version} {names[0]}" if question.by_one else f"v{version}"


def all_told(world: World, versions: Mapping[str, Sequence[int]]) -> Told:
    """What a broker tells every user, in the versions that are given for each question."""
    found: Told = {}
    for user in USERS:
        with closing(Seat(world, user)) as seat:
            for question in QUESTIONS:
                of_user = found.setdefault(question.title, {}).setdefault(user, {})
                for version in versions[question.title]:
                    for names in question.requests():
                        answer = seat.answer(question, version, names)
                        of_user[asked(question, version, names)] = told_of_names(answer, world)
    return found


def written(told: Told) -> str:
    """One line for each answer, with all that were told it."""
    lines = []
    for title, users in told.items():
        rows = []
        for user, answers in users.items():
            by_text: dict[str, list[str]] = {}
            for request, answer in answers.items():
                by_text.setdefault(json.dumps(answer, sort_keys=True), []).append(request)
            rows += [
                f"    [{json.dumps(user)}, {json.dumps(', '.join(requests))}, {text}]"
                for text, requests in by_text.items()
            ]
        lines.append(f"  {json.dumps(title)}: [\n" + ",\n".join(rows) + "\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read() -> Told:
    found: Told = {}
    for title, rows in json.loads(FILE.read_text()).items():
        for user, requests, answer in rows:
            of_user = found.setdefault(title, {}).setdefault(user, {})
            of_user.update(dict.fromkeys(requests.split(", "), answer))
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    ports = {name: own_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT")}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
        "node.id": "1",
        "wal.commit.interval.ms": "5",
        "group.initial.rebalance.delay.ms": "0",
    }
    data = tmp_path_factory.mktemp("refusals") / "data"
    with LiveBroker(data, settings, port=ports["PLAINTEXT"]):
        yield World(ports["PLAINTEXT"], ports["SASL_PLAINTEXT"])


def test_there_is_a_question_for_every_api_in_every_version(world: World) -> None:
    served = {
        (key, version)
        for key, versions in world.versions.items()
        if key < FIRST_KEY_BETWEEN_BROKERS and key not in ASKS_NOBODY
        for version in versions
        if not (key == 0 and version < 3)
    }
    asked = {
        (question.key, version) for question in QUESTIONS for version in question.versions(world)
    }
    assert asked == served


@pytest.mark.skipif(WRITES, reason="it is being written")
def test_whoever_has_few_rights_is_told_what_kafka_tells(world: World) -> None:
    kafka = read()
    versions = {question.title: question.versions(world) for question in QUESTIONS}
    ours = all_told(world, versions)
    different = {
        f"{title} {user} {request}": (answer, kafka[title][user][request])
        for title, users in ours.items()
        for user, answers in users.items()
        for request, answer in answers.items()
        if answer != kafka[title][user][request]
        and (title, request.partition(" ")[2]) not in TOLD_OTHERWISE
    }
    assert different == {}


def test_no_answer_tells_whether_what_is_refused_is_there(world: World) -> None:
    """All of an answer is compared: texts of errors and what is not compared with Kafka's."""
    with closing(Seat(world, "nobody")) as seat:
        for question in QUESTIONS:
            for version in question.versions(world):
                if version >= question.ids_since:
                    continue
                told = [
                    everything_told(seat.answer(question, version, [name]), name)
                    for name in ("closed", "absent")
                ]
                assert told[0] == told[1], (question.title, version)


@pytest.mark.exhaustive
@pytest.mark.jvm
def test_the_file_has_what_kafka_tells(tmp_path: Path) -> None:
    """The newest release, and the versions before it from the older one."""
    found: Told = {}
    for release in reversed(KAFKA_VERSIONS):
        for title, users in of_kafka(release, tmp_path / release).items():
            for user, answers in users.items():
                kept = found.setdefault(title, {}).setdefault(user, {})
                for request, answer in answers.items():
                    kept.setdefault(request, answer)
    if WRITES:
        FILE.write_text(written(found))
    assert found == read()


def of_kafka(release: str, directory: Path) -> Told:
    directory.mkdir()
    ports = {name: own_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT")}
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
    }
    with (
        closing(KafkaTools(release)) as tools,
        kafka_broker(tools, directory, ports, settings),
    ):
        theirs = World(ports["PLAINTEXT"], ports["SASL_PLAINTEXT"])
        versions = {question.title: question.versions(theirs) for question in QUESTIONS}
        return all_told(theirs, versions)
