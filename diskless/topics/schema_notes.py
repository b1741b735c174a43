"""Notes the text of long schemas in the bucket, before topics get them.

WAL objects carry how their topics are configured, so that a rebuild of the metadata knows it, but
of a schema that is longer than NOTED_SCHEMA_MAX only its digest. The broker that is asked to set
one puts the text into a notes object (wal/chunks/kept_notes.py) first:

    put the notes object -> alter or create the topic -> answer

So no topic has a schema that is not in the bucket. A text that no topic has, because the change was
refused or another one came later, is dropped by metadata/workers/notes_sweep.py.

Failure cases: ObjectStoreUnavailable, UploadOutcomeUnknown; then nothing is changed.
"""

import random
from collections.abc import Iterable, Mapping

from wal.chunks.kept_notes import KeptNotes, encode_kept_notes, notes_key
from wal.chunks.object_notes import long_schemas
from wal.clock import Clock
from wal.failpoint import failpoint
from wal.stores.object_store import BytesBody, ObjectStore
from wal.ulid import mint_ulid


class SchemaNotes:
    """Puts notes into one bucket."""

    def __init__(self, store: ObjectStore, *, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng

    async def keep(self, topics: Iterable[Mapping[str, str]]) -> None:
        """Make the long schemas among the configs of `topics` durable."""
        texts = {text for configs in topics for text in long_schemas(configs.items())}
        if not texts:
            return
        body = encode_kept_notes(KeptNotes(schemas=tuple(sorted(texts))))
        await self._store.put(notes_key(mint_ulid(self._clock, self._rng)), BytesBody(body))
        failpoint("schema.after_note")
