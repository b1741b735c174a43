"""How the driver and tasks reach brokers: by the file that option `commandConfig` names.

Each process reads the file itself. So what is secret in it is neither in a plan nor on Spark's
pages, and it must be there on executors too. Failure cases: InvalidSettings.
"""

from pathlib import Path

from wal.security.client_security import PLAINTEXT, ClientSecurity, read_client_security


def security_of(command_config: str | None) -> ClientSecurity:
    """What the file says; without one, plain text. Raises: InvalidSettings."""
    if command_config is None:
        return PLAINTEXT
    return read_client_security(Path(command_config))
