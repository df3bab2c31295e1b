"""Short ids: tables on a terminal show the last characters of an id, and commands accept them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from crmctl.config.settings import write_private
from crmctl.errors import CrmctlError, NotFoundError, RejectedError

KEPT = 20_000
"""Shown ids that are remembered at least; the file is cut when it has twice as many."""

_LINE = 37
"""Bytes of an id and its line end."""

_ENDING = re.compile(r"[0-9a-f]{6,12}")


class ShownIds:
    """The ids that tables have shortened on this machine, one per line, the latest last. A cache: whatever fails is as if it were empty."""

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "shown-ids"

    def remember(self, ids: Iterable[str]) -> None:
        """Add whole ids."""
        text = "".join(f"{identity}\n" for identity in ids)
        try:
            if self._path.exists() and self._path.stat().st_size < 2 * KEPT * _LINE:
                with self._path.open("a", encoding="ascii") as file:
                    file.write(text)
            else:
                write_private(self._path, "".join(f"{identity}\n" for identity in self._all()[-KEPT:]) + text)
        except (OSError, ValueError, CrmctlError):
            return

    def whole(self, text: str) -> str:
        """Return the shown id with this ending; the text itself if it is no ending or no table has shortened an id.

        Raises NotFoundError for an ending that no shown id has, RejectedError for one of several.
        """
        if not _ENDING.fullmatch(ending := text.lower()):
            return text
        shown = self._all()
        ids = list(dict.fromkeys(identity for identity in shown if identity.endswith(ending)))
        if len(ids) == 1 or not shown:
            return ids[0] if ids else text
        if not ids:
            raise NotFoundError(f"crmctl has shown no id ending in {text!r} on this machine", hint="give the whole id")
        raise RejectedError(
            f"{len(ids)} ids end in {text!r}: {', '.join(ids)}", hint="give the whole id", code="ambiguous_record", details={"ids": ids}
        )

    def _all(self) -> Sequence[str]:
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return []
        return [line for line in lines if len(line) == _LINE - 1]
