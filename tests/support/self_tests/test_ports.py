"""Ports of a test process."""

import socket
import subprocess
import sys

from tests.support.ports import SLICE, own_port


def test_two_processes_have_no_port_in_common() -> None:
    own_port()  # from here on this process has its slice
    program = f"from tests.support.ports import *; print(*(own_port() for _ in range({SLICE})))"
    theirs = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert {own_port() for _ in range(SLICE)}.isdisjoint(map(int, theirs.stdout.split()))


def test_a_port_where_somebody_listens_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", own_port())) as listener:
        taken = listener.getsockname()[1]
        assert taken not in {own_port() for _ in range(SLICE)}
