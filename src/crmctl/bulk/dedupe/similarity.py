"""How alike two normal forms are, from 0 to 1: by rapidfuzz, of which this is the only home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from crmctl.errors import UsageError

Measure = Callable[[str, str, float], float]
"""Two texts and the least that matters: below it the answer is 0."""

MEASURES: Mapping[str, str] = {
    "edits": "one minus the share of letters to change, insert, delete or swap (optimal string alignment)",
    "name": "Jaro-Winkler, words in alphabetical order: what names have in common at their beginnings counts more",
    "words": "the letters in common, words in alphabetical order (indel)",
}


def measures() -> Mapping[str, Measure]:
    """The functions by name. Raises UsageError where rapidfuzz is not installed."""
    try:
        distance: Any = import_module("rapidfuzz.distance")
    except ImportError as error:
        raise UsageError(
            "similarity (~) needs rapidfuzz, which is not installed", hint="pip install 'crmctl[dedupe]'", code="not_installed"
        ) from error
    osa = distance.OSA.normalized_similarity
    jaro = distance.JaroWinkler.similarity
    indel = distance.Indel.normalized_similarity

    def edits(a: str, b: str, least: float) -> float:
        return float(osa(a, b, score_cutoff=least))

    def name(a: str, b: str, least: float) -> float:
        return float(jaro(a, b, score_cutoff=least))

    def words(a: str, b: str, least: float) -> float:
        if " " not in a and " " not in b:
            return float(indel(a, b, score_cutoff=least))
        return float(indel(" ".join(sorted(a.split())), " ".join(sorted(b.split())), score_cutoff=least))

    return {"edits": edits, "name": name, "words": words}
