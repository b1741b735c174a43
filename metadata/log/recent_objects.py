"""The objects of one metadata log that were read or written last, in memory.

Readers of the log find them here, and so do followers in other processes, who are fed from it: one
copy of the bytes serves all of them. The oldest ones go when there are too many bytes.
"""

from collections import OrderedDict

from metadata.log.log_object import LogObject


class RecentObjects:
    """At most `bytes_max` of objects, by base offset."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: OrderedDict[int, LogObject] = OrderedDict()
        self._bytes = 0

    def get(self, base_offset: int) -> LogObject | None:
        return self._objects.get(base_offset)

    def used(self, base_offset: int) -> LogObject | None:
        """The same for a reader; what was used last goes last."""
        found = self._objects.get(base_offset)
        if found is not None:
            self._objects.move_to_end(base_offset)
        return found

    def remember(self, found: LogObject) -> None:
        """Keep an object for the next who reads it, and let the oldest go."""
        self.forget(found.header.base_offset)
        self._objects[found.header.base_offset] = found
        self._bytes += len(found.data)
        while self._bytes > self._bytes_max:
            self.forget(next(iter(self._objects)))

    def forget_below(self, base_offset: int) -> None:
        for known in [known for known in self._objects if known < base_offset]:
            self.forget(known)

    def forget(self, base_offset: int) -> None:
        found = self._objects.pop(base_offset, None)
        if found is not None:
            self._bytes -= len(found.data)
