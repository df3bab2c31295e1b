"""What may come next in a `--filter`: an attribute or a part, then an operator of its type, then the options of a select. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from crmctl.models.filters import LISTS, SIGNS, VALUELESS, Operator
from crmctl.models.part_names import PART_NAMES

_SAME = (Operator.EQUALS, Operator.NOT_EQUALS)
_ORDER = (Operator.GREATER_THAN, Operator.GREATER_THAN_OR_EQUAL, Operator.LESS_THAN, Operator.LESS_THAN_OR_EQUAL)
_TEXT = (Operator.CONTAINS, Operator.NOT_CONTAINS, Operator.STARTS_WITH, Operator.ENDS_WITH)
_PRESENCE = (Operator.IS_EMPTY, Operator.IS_NOT_EMPTY)
OPERATORS: dict[str, tuple[str, ...]] = {
    "number": (*_SAME, *_ORDER, *LISTS, *_PRESENCE),
    "currency": (*_SAME, *_ORDER, *LISTS, *_PRESENCE),
    "date": (*_SAME, *_ORDER, *LISTS, *_PRESENCE),
    "checkbox": (Operator.IS_TRUE, Operator.IS_FALSE, *_PRESENCE),
    "select": (*_SAME, *LISTS, *_TEXT, *_PRESENCE),
    "reference": (*_SAME, *LISTS, *_PRESENCE),
    "time": (*_ORDER, Operator.EQUALS),
}
"""What one asks of a type; of every other it is what one asks of text."""

OF_TEXT = (*_SAME, *_TEXT, *LISTS, *_PRESENCE)
TIMES = ("created_at", "updated_at")
PLAIN = re.compile(r"[\w.\-]+")
WORDS = re.compile(r"[\w.\-]+(?: [\w.\-]+)*")
_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
_WORD = "|".join(sorted((*(one for one in Operator if one not in VALUELESS), *LISTS), key=len, reverse=True))
_BEFORE_VALUE = re.compile(rf"(?P<target>[\w.\-]+)(?:\s*(?:{_SIGN})\s*|\s+(?:{_WORD})\s+(?:[^,]*,\s*)*)", re.IGNORECASE)
_BEFORE_OPERATOR = re.compile(r"(?P<target>[\w.\-]+)\s+")


def complete_condition(typed: str, attributes: Sequence[dict[str, Any]]) -> list[str]:
    """Whole words that begin as `typed` does, which may begin with the quote that was opened: operators in words need one."""
    typed = typed.lstrip()
    text = typed.lstrip("'\"")
    is_quoted = text != typed or " " in text
    known = {slug: item for item in attributes if isinstance(slug := item.get("slug"), str) and PLAIN.fullmatch(slug)}
    before = _BEFORE_VALUE.match(text)
    if before is not None:
        return _values(before.group(), known.get(before["target"], {}), spaced=is_quoted)
    if not is_quoted:
        return [f"{target}=" for target in _targets(text, known)]
    found = _BEFORE_OPERATOR.match(text)
    if found is not None:
        words = _conditions(found.group(), _kind(found["target"], known))
    else:
        targets = [target for target in _targets(text, known) if target.startswith(text)]
        chosen = text if text in targets else targets[0] if len(targets) == 1 else None
        words = targets if chosen is None else _conditions(f"{chosen} ", _kind(chosen, known))
    return _kept_open([word for word in words if word.startswith(text)])


def _targets(text: str, known: dict[str, dict[str, Any]]) -> list[str]:
    """Attributes and times; behind a dot the parts of one."""
    slug, dot, _ = text.partition(".")
    if dot:
        return [f"{slug}.{part}" for part in PART_NAMES.get(str(known.get(slug, {}).get("type")), {})]
    active = [slug for slug, item in known.items() if item.get("isActive") is not False]
    return [*active, *(TIMES if known else ())]


def _kind(target: str, known: dict[str, dict[str, Any]]) -> str:
    slug, dot, part = target.partition(".")
    if target in TIMES and target not in known:
        return "time"
    kind = str(known.get(slug, {}).get("type"))
    return kind if not dot else "number" if (kind, part) == ("currency", "amount") else "text"


def _conditions(front: str, kind: str) -> list[str]:
    """The beginning with each operator; a blank where a value has to follow."""
    return [f"{front}{word}{'' if word in VALUELESS else ' '}" for word in OPERATORS.get(kind, OF_TEXT)]


def _values(front: str, attribute: dict[str, Any], *, spaced: bool) -> list[str]:
    """The beginning with each option of a select."""
    options: Iterable[object] = (attribute.get("config") or {}).get("options") or ()
    fits = WORDS if spaced else PLAIN
    return [f"{front}{option}" for option in options if isinstance(option, str) and fits.fullmatch(option)]


def _kept_open(words: list[str]) -> list[str]:
    """A shell closes the quote behind the only candidate there is; where a value has to follow, there are two."""
    return [words[0], f"{words[0]}VALUE"] if len(words) == 1 and words[0].endswith(" ") else words
