"""How alike two normal forms are, from 0 to 1: by rapidfuzz, of which this is the only home."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from crmctl.errors import UsageError

EDITS, NAME, WORDS = "edits", "name", "words"

MEASURES: Mapping[str, str] = {
    EDITS: "one minus the share of letters to change, insert, delete or swap (optimal string alignment)",
    NAME: "Jaro-Winkler, words in alphabetical order: what names have in common at their beginnings counts more",
    WORDS: "the letters in common, words in alphabetical order (indel)",
}


class TextMeasure(Protocol):
    """Two texts, their words in the order in which they are compared, and the least that matters: below it, and of None, it is 0."""

    def __call__(self, a: str | None, b: str | None, /, *, score_cutoff: float) -> float: ...


def measures() -> Mapping[str, TextMeasure]:
    """The functions by name. Raises UsageError where rapidfuzz is not installed."""
    try:
        distance: Any = import_module("rapidfuzz.distance")
    except ImportError as error:
        raise UsageError(
            "similarity (~) needs rapidfuzz, which is not installed", hint="pip install 'crmctl[dedupe]'", code="not_installed"
        ) from error
    return {
        EDITS: distance.OSA.normalized_similarity,
        NAME: distance.JaroWinkler.similarity,
        WORDS: distance.Indel.normalized_similarity,
    }
