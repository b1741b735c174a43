"""The failpoints that the table of wal/failpoint.py has."""

from wal import failpoint


def documented_failpoints() -> set[str]:
    rows = (failpoint.__doc__ or "").splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| ")]
    return {name for cell in cells if "." in cell for name in cell.replace(" ", "").split("/")}
