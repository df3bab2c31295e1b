"""How alike two normal forms are, from 0 to 1: by rapidfuzz, of which this is the only home."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from crmctl.errors import UsageError

EDITS, NAME, WORDS = "edits", "name", "words"

WORD_LEAST = 0.82
"""Two words of names that are less alike are not one word with a mistake: Ben is not Bob. One letter of four may differ, none of three."""

GENERATIONS = frozenset(("jr", "junior", "ii", "iii", "iv"))
"""Words that only one of two names has where they are a father and a son."""

MEASURES: Mapping[str, str] = {
    EDITS: "one minus the share of letters to change, insert, delete or swap (optimal string alignment)",
    NAME: "Jaro-Winkler, words in alphabetical order: what names have in common at their beginnings counts more; and each word of the "
    f"shorter name like one of the longer (by {WORD_LEAST}, or its initial), so Ben and Bob Adams are two, as are a son (jr) and a father",
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
        NAME: partial(_names_alike, distance.JaroWinkler.similarity),
        WORDS: distance.Indel.normalized_similarity,
    }


def _names_alike(measure: TextMeasure, a: str | None, b: str | None, /, *, score_cutoff: float) -> float:
    alike = measure(a, b, score_cutoff=score_cutoff)
    if not alike or alike == 1.0 or a is None or b is None:
        return alike
    one, other = set(a.split()), set(b.split())
    fewer, more = sorted((one - other, other - one), key=len)
    if not GENERATIONS.isdisjoint(fewer | more):
        return 0.0
    least = min(score_cutoff, WORD_LEAST)
    for word in fewer:
        if not any(word.startswith(each) or each.startswith(word) for each in more if 1 in (len(word), len(each))) and not any(
            measure(word, each, score_cutoff=least) for each in more
        ):
            return 0.0
    return alike
