"""Identifiers, and the nearest known word to a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from crmctl.errors import UsageError

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID in its usual spelling, in letters of either case."""
    return _UUID.fullmatch(text) is not None


def reference_id(value: Any) -> Any:
    """Return the id in one reference, which may be an object with `id` or `recordId`; any other value as it is."""
    return next((value[key] for key in ("id", "recordId") if value.get(key)), value) if isinstance(value, Mapping) else value


def reference_ids(value: Any) -> Iterator[str]:
    """Yield the ids, in lower case, that a reference value names."""
    if isinstance(value, list):
        for item in value:
            yield from reference_ids(item)
    elif isinstance(record_id := reference_id(value), str) and record_id:
        yield record_id.lower()


CUTOFF = 0.6
"""Least similarity of two words, of 1, for a useful guess."""


def nearest(word: str, candidates: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """Return the candidate most similar to the word, the first of equals; None without a similar one."""
    from difflib import SequenceMatcher  # only an error pays for it

    def ratio(candidate: str) -> float:
        return SequenceMatcher(None, word.casefold(), candidate.casefold()).ratio()

    best = max(candidates, key=ratio, default=None)
    return best if best is not None and ratio(best) >= cutoff else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `did you mean people?`, or an empty text."""
    candidate = nearest(word, candidates)
    return f"did you mean {candidate}?" if candidate is not None else ""


def suggestion(word: str, candidates: Iterable[str], listing: str = "") -> str | None:
    """Return a hint: the nearest candidate if there is one, then the listing."""
    return f"{did_you_mean(word, candidates)} {listing}".strip() or None


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise UsageError for a value that is given and not among the choices."""
    if value is not None and value not in choices:
        *others, last = choices
        listed = f"{', '.join(others)} or {last}" if others else last
        raise UsageError(f"{option} must be {listed}, not {value!r}", hint=suggestion(value, choices))
