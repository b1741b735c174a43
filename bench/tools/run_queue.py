"""How long this process was ready to run and had no CPU: what others on the machine cost it."""

from pathlib import Path

_TASKS = Path("/proc/self/task")


def waited_s() -> float:
    """Seconds since its start, summed over its threads; 0 where the kernel does not tell.

    Two threads that wait at the same time count twice.
    """
    waited_ns = 0
    try:
        for task in _TASKS.iterdir():
            try:
                _, waiting_ns, _ = (task / "schedstat").read_text().split()
            except FileNotFoundError:
                continue  # this thread has just ended
            waited_ns += int(waiting_ns)
    except (OSError, ValueError):
        return 0.0
    return waited_ns / 1e9
