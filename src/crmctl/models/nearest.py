"""What was probably meant by a word that is none of those there are: one suggestion, the same every time. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6
"""So alike, of 1, must two words be; less is a guess that helps nobody."""


def nearest(word: str, candidates: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The candidate most like the word, of equals the first; None where none is like it."""
    from difflib import SequenceMatcher  # only an error pays for it

    best, best_ratio = None, cutoff
    folded = word.casefold()
    for candidate in candidates:
        ratio = SequenceMatcher(None, folded, candidate.casefold()).ratio()
        if ratio > best_ratio or (best is None and ratio >= cutoff):
            best, best_ratio = candidate, ratio
    return best


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`did you mean people?`, or nothing."""
    found = nearest(word, candidates)
    return f"did you mean {found}?" if found is not None else ""


def suggestion(word: str, candidates: Iterable[str], listing: str = "") -> str | None:
    """A hint: what was probably meant, if anything, then what there is."""
    return f"{did_you_mean(word, candidates)} {listing}".strip() or None
