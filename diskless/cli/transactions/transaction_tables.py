"""What the `diskless transaction` commands show."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from rich.table import Table

from diskless.cli.tables import table
from metadata.transaction_operations import Transaction, TransactionState


def older_than(
    transactions: Iterable[Transaction], age_s: float, now_ms: int
) -> Sequence[Transaction]:
    """Those that are open, for longer than that, the oldest first."""
    found = [one for one in transactions if one.is_open and now_ms - one.began_ms > age_s * 1000]
    return sorted(found, key=lambda one: one.began_ms)


def list_table(transactions: Iterable[Transaction], now_ms: int) -> Table:
    rows = table("id", "state", "number", "producer id", "epoch", "open for", "timeout")
    for one in transactions:
        rows.add_row(
            one.transactional_id,
            state_text(one),
            str(one.number),
            str(one.producer_id),
            str(one.producer_epoch),
            duration(now_ms - one.began_ms) if one.is_open else "-",
            duration(one.timeout_ms),
        )
    return rows


def facts(one: Transaction, now_ms: int) -> Mapping[str, str]:
    return {
        "id": one.transactional_id,
        "state": state_text(one),
        "transaction": str(one.number) if one.number else "none yet",
        "began": moment(one.began_ms) if one.number else "-",
        "open for": duration(now_ms - one.began_ms) if one.is_open else "-",
        "last changed": moment(one.changed_ms),
        "producer id": str(one.producer_id),
        "producer epoch": str(one.producer_epoch),
        "timeout": duration(one.timeout_ms),
        "takes part": parts_text(one),
    }


def parts_table(one: Transaction, names: Mapping[UUID, str]) -> Table:
    """`names` are those of topics; one that is deleted has none."""
    rows = table("kind", "name", "partition", "coordinator")
    partitions = [
        (names.get(partition.topic_id, str(partition.topic_id)), partition.partition, coordinator)
        for partition, coordinator in one.partitions.items()
    ]
    for name, index, coordinator in sorted(partitions):
        rows.add_row("topic", name, str(index), str(coordinator))
    for group_id, coordinator in sorted(one.groups.items()):
        rows.add_row("group", group_id, "-", str(coordinator))
    return rows


def parts_text(one: Transaction) -> str:
    if not one.partitions and not one.groups:
        return "nothing"
    counts = ((len(one.partitions), "partition"), (len(one.groups), "group"))
    return " and ".join(
        f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count
    )


def state_text(one: Transaction) -> str:
    return TransactionState(one.state).name.lower()


def duration(ms: int) -> str:
    """Such as `4.2 s`, `3 m 20 s`, `2 h 5 m`."""
    if ms < 60_000:
        return f"{max(ms, 0) / 1000:.1f} s"
    seconds = ms // 1000
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} m"


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")
