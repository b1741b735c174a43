"""A signal that a wait may end early, with what there is by then."""

from collections.abc import Callable


class EarlyEnd:
    """Tells a parked fetch to answer now with what it has, because somebody waits behind it.

    Set at most once per request, never reset. One listener at a time; it runs synchronously in
    `set()`, or at once when the signal was set before it came.
    """

    __slots__ = ("_is_set", "_listener")

    def __init__(self) -> None:
        self._is_set = False
        self._listener: Callable[[], None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Idempotent."""
        if self._is_set:
            return
        self._is_set = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Replace the listener; None removes it (a fetch that is done leaves nothing behind)."""
        if listener is not None and self._is_set:
            listener()
        else:
            self._listener = listener
