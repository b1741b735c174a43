"""Fragment chains of bytes that did not come from a socket."""

from wal.chunks.buffer import BufferPool, ChainBuilder, FragmentChain


def chain_of(pool: BufferPool, data: bytes | bytearray | memoryview) -> FragmentChain:
    """A chain that holds a copy of `data`: for bytes that did not come from a socket."""
    builder = ChainBuilder(pool)
    position = 0
    view = memoryview(data).cast("B")
    while position < len(view):
        room = builder.writable(len(view) - position)
        part = view[position : position + len(room)]
        room[: len(part)] = part
        builder.commit(len(part))
        position += len(part)
    return builder.take(len(view))
