"""Cache lists of objects, attributes, reports and workflows between commands. Completion reads them, so this loads no model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from crmctl.clock import Clock
from crmctl.config.settings import write_private
from crmctl.errors import ConfigError, StorageError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json

FRESH_SECONDS = 300.0
OBJECTS = "objects"
"""The list of objects; the attributes of each object are under its id."""

Items = list[Json]


class SchemaCache:
    """One file per profile and origin, mode 0600, replaced atomically so that processes can share it."""

    def __init__(self, cache_dir: Path, profile: str, origin: str, clock: Clock) -> None:
        name = hashlib.sha256(f"{profile}@{origin}".encode()).hexdigest()[:20]
        self._path = cache_dir / "schema" / f"{name}.json"
        self._clock = clock
        self._lists: Json | None = None

    def get(self, name: str, max_age: float = FRESH_SECONDS) -> Items | None:
        """Return the list under `name` (OBJECTS or an object's id) if it is at most `max_age` seconds old."""
        entry = self._read().get(name)
        if not isinstance(entry, dict) or not isinstance(entry.get("at"), int | float) or not isinstance(entry.get("items"), list):
            return None
        age = self._clock.now() - entry["at"]
        items = entry["items"]
        return items if 0 <= age <= max_age and all(isinstance(item, dict) for item in items) else None

    def put(self, name: str, items: Items) -> None:
        """Store a list; ignore a cache that cannot be written."""
        self._lists = None  # another process may have written meanwhile
        self._write({**self._read(), name: {"at": self._clock.now(), "items": items}})

    def forget(self, name: str | None = None) -> None:
        """Drop one list, or everything."""
        self._lists = None
        kept = {key: value for key, value in self._read().items() if name is not None and key != name}
        if kept != self._lists:
            self._write(kept)

    def _read(self) -> Json:
        if self._lists is None:
            try:
                lists = jsontext.loads(self._path.read_bytes())
            except (OSError, ValueError):
                lists = {}
            self._lists = lists if isinstance(lists, dict) else {}
        return self._lists

    def _write(self, lists: Json) -> None:
        self._lists = lists
        try:
            write_private(self._path, jsontext.dumps(lists))
        except (ConfigError, StorageError, ValueError):
            return
