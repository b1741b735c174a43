"""The configuration section of the audit log: where its lines go."""

from dataclasses import dataclass

from wal.settings import setting

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """`diskless.config` fills it."""

    path: str = setting(
        "audit.log.file",
        "",
        why="a file of its own for who did what and who was not let, a JSON object a line; it may "
        "be moved away at any time; - is standard output; empty: among the broker's other logs",
    )
