"""Kafka's command line tools as tests call them: by short name, on one broker, and checked.

    kafka = KafkaCommands(tools, broker.bootstrap)
    kafka("TopicCommand", "--create", "--topic", "flights")
    table(kafka("ConsumerGroupCommand", "--describe", "--group", "g"))

A call fails unless the tool succeeded without complaint: neither a warning of the client library
nor a stack trace on standard error. `refused` is for what must fail, and gives all it said.
"""

import re
from typing import Final

from tests.support.clients.jvm import Finished, JavaProcess, KafkaTools

_TOOLS: Final = "org.apache.kafka.tools."
_CLASS: Final = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": f"{_TOOLS}consumer.ConsoleConsumer",
    "ConsumerGroupCommand": f"{_TOOLS}consumer.group.ConsumerGroupCommand",
    "ReassignPartitionsCommand": f"{_TOOLS}reassign.ReassignPartitionsCommand",
}
_CLASS_3: Final = {
    "AclCommand": "kafka.admin.AclCommand",
    "BrokerApiVersionsCommand": "kafka.admin.BrokerApiVersionsCommand",
    "ConsoleProducer": "kafka.tools.ConsoleProducer",
}
"""Those that moved when Kafka's tools left Scala behind."""

_BROKER_FIRST: Final = {"FeatureCommand", "TransactionsCommand"}
"""Those that take the broker before their subcommand, not after it."""

_COMPLAINT: Final = re.compile(r"^(WARN|ERROR) |^\s+at |Exception", re.MULTILINE)
_LEAVING: Final = re.compile(
    "OffsetFetch failed with STALE_MEMBER_EPOCH and the consumer is not part"
)
"""Of a member that leaves while it waits for its offsets, with an epoch that a heartbeat has just
replaced; the answer finds it gone."""

Row = dict[str, str]


class KafkaCommands:
    """The tools of one Kafka version and one broker."""

    def __init__(self, tools: KafkaTools, bootstrap: str) -> None:
        self.tools = tools
        self.bootstrap = bootstrap

    def __call__(self, name: str, *arguments: str, stdin: bytes = b"") -> Finished:
        """Run `name` to its end. Fails unless it succeeds quietly."""
        finished = self.run(name, *arguments, stdin=stdin)
        assert finished.status == 0, finished
        check_quiet(finished.stderr)
        return finished

    def refused(self, name: str, *arguments: str) -> str:
        """What `name` said. Fails when nothing says that it failed: some exit with 0."""
        finished = self.run(name, *arguments)
        said = finished.stdout + finished.stderr
        assert finished.status != 0 or "Error" in said, finished
        return said

    def run(self, name: str, *arguments: str, stdin: bytes = b"") -> Finished:
        """Run `name` to its end, whatever that is."""
        broker = ("--bootstrap-server", self.bootstrap)
        ordered = (*broker, *arguments) if name in _BROKER_FIRST else (*arguments, *broker)
        return self.tools.run(self._class(name), *ordered, stdin=stdin)

    def start(self, name: str, *arguments: str) -> JavaProcess:
        """`name` in a process of its own; to be used as a context."""
        return self.tools.start(self._class(name), *arguments, "--bootstrap-server", self.bootstrap)

    def _class(self, name: str) -> str:
        moved = {} if self.tools.is_4 else _CLASS_3
        return moved.get(name) or _CLASS.get(name) or _TOOLS + name


def check_quiet(stderr: str) -> None:
    """Fails when a client library warned of anything but its own end."""
    said = "\n".join(line for line in stderr.splitlines() if not _LEAVING.search(line))
    assert not _COMPLAINT.search(said), stderr


def table(finished: Finished) -> list[Row]:
    """A table with a line of titles as rows. Cells have no blanks, and none is empty."""
    titles, *lines = (line.split() for line in finished.lines if not line.startswith("Warn"))
    return [dict(zip(titles, line, strict=False)) for line in lines]
