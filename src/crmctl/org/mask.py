"""Replace personal values by invented ones, and prove that none is left.

Equal values of one kind get equal replacements, whatever the object. crmctl masks every value that is not known to be harmless or kept by
name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from crmctl.errors import DifferenceError, RejectedError, UsageError, reason
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType

SHORTEST = 5
"""Shorter values do not count as leaks: they occur in any text."""

MOST_TRIES = 1000
MOST_WORDS = 60

FIRST_NAMES = "Alma Bruno Clara Dario Elsa Felix Greta Hugo Irma Jonas Karla Linus Marta Nils Olga Pavel Rosa Sven Tilda Vera"
LAST_NAMES = "Ahorn Birke Distel Eiche Farn Ginster Hasel Iris Kiefer Linde Mohn Nelke Primel Quitte Rose Salbei Tanne Ulme Weide"
NOUNS = "amber basin cedar delta ember flint grove heath inlet jetty knoll lotus maple north ocean pearl quartz river stone street"
FIRST, LAST, WORDS = FIRST_NAMES.split(), LAST_NAMES.split(), NOUNS.split()
DOMAINS = ("example.com", "example.org", "example.net")
AREAS = (202, 212, 213, 215, 303, 305, 312, 404, 412, 415, 503, 512, 602, 612, 617, 702, 713, 804, 808, 901, 907, 916)
"""Area codes; the numbers 555-0100 to 555-0199 of each are reserved for fiction."""

VOCABULARY = " ".join([FIRST_NAMES, LAST_NAMES, NOUNS, *DOMAINS]).lower()

HARMLESS = frozenset(
    {
        AttributeType.SELECT, AttributeType.NUMBER, AttributeType.DATE, AttributeType.CHECKBOX, AttributeType.CURRENCY,
        AttributeType.REFERENCE,
    }
)  # fmt: skip


class Mask:
    """Replaces values with a secret key. `source_values` must have seen every value before the first replacement."""

    def __init__(self, key: bytes, keep: frozenset[str]) -> None:
        self._key = key
        self.keep = keep
        self._sources: dict[str, set[str]] = {}
        self._made: dict[tuple[str, str], str] = {}
        self._used: dict[str, set[str]] = {}

    @classmethod
    def of(cls, key_file: Path | None, keep: frozenset[str]) -> Mask:
        """Return a mask with the key of a file, or a random one. Raises UsageError for an unreadable or short key."""
        if key_file is None:
            return cls(secrets.token_bytes(32), keep)
        try:
            key = key_file.read_bytes().strip()
        except OSError as error:
            raise UsageError(f"--mask-key {key_file}: {reason(error)}") from error
        if len(key) < 16:
            raise UsageError(f"--mask-key {key_file}: a key has at least 16 bytes", hint="head -c 32 /dev/urandom | base64 > FILE")
        return cls(key, keep)

    def is_masked(self, slug: str, attribute: Attribute) -> bool:
        return attribute.type not in HARMLESS and f"{slug}.{attribute.slug}" not in self.keep

    # -- what must not appear --------------------------------------------------------------------------------------------------------

    def see(self, value: Any, harmless: frozenset[str] = frozenset()) -> None:
        """Remember the texts of a value that will be masked."""
        for text in texts_in(value):
            folded = text.strip().lower()
            if len(folded) >= SHORTEST and folded not in VOCABULARY and folded not in harmless:
                self._sources.setdefault(folded[:SHORTEST], set()).add(folded)

    def leak_in(self, text: str) -> str | None:
        """Return a masked source value that a text contains."""
        folded = text.lower()
        for start in range(len(folded) - SHORTEST + 1):
            for source in self._sources.get(folded[start : start + SHORTEST], ()):
                if folded.startswith(source, start):
                    return source
        return None

    # -- replacing -------------------------------------------------------------------------------------------------------------------

    def record(self, slug: str, attributes: Sequence[Attribute], data: Json) -> Json:
        masked = {each.slug: each for each in attributes if each.slug in data and self.is_masked(slug, each)}
        return {name: self.value(masked[name], value) if name in masked else value for name, value in data.items()}

    def value(self, attribute: Attribute, value: Any) -> Any:
        """Return the replacement of a value; lists keep their length, objects their parts."""
        kind = attribute.type or AttributeType.TEXT
        unique = attribute.slug if attribute.is_unique else ""
        return self._replaced(kind, value, "", unique)

    def text(self, value: str) -> str:
        return self._text(AttributeType.TEXT, value, "", "")

    def email(self, value: str) -> str:
        return self._text(AttributeType.EMAIL, value, "", "")

    def name(self, value: str) -> str:
        return self._text(AttributeType.NAME, value, "", "")

    def _replaced(self, kind: str, value: Any, part: str, unique: str) -> Any:
        if isinstance(value, str):
            return self._text(kind, value, part, unique) if value.strip() else value
        if isinstance(value, list):
            return [self._replaced(kind, item, part, unique) for item in value]
        if isinstance(value, Mapping):
            return {name: self._replaced(kind, item, name, unique) for name, item in value.items()}
        return value if value is None or isinstance(value, bool) else 0

    def _text(self, kind: str, value: str, part: str, unique: str) -> str:
        folded = value.strip().lower() if kind == AttributeType.EMAIL else value
        shape = f"{kind}.{part}{'.unique' if unique else ''}"
        if (known := self._made.get((shape, folded))) is not None:
            return known
        used = self._used.setdefault(shape, set()) if unique or kind == AttributeType.EMAIL else set()
        for number in count():
            digest = hmac.new(self._key, f"{shape}\0{number}\0{folded}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
            made = _invent(kind, part, value, digest, is_unique=bool(unique))
            if made not in used and self.leak_in(made) is None:
                break
            if number == MOST_TRIES:
                raise RejectedError(f"crmctl cannot invent enough different values of the type {kind}", code="mask_exhausted")
        used.add(made)
        self._made[shape, folded] = made
        return made


def _invent(kind: str, part: str, value: str, digest: bytes, *, is_unique: bool) -> str:
    number = int.from_bytes(digest[:16], "big")

    def pick(words: Sequence[str], place: int) -> str:
        return words[digest[16 + place % 16] % len(words)]

    if kind == AttributeType.EMAIL:
        return f"{pick(FIRST, 0)}.{pick(LAST, 1)}.{digest[:5].hex()}@{pick(DOMAINS, 2)}".lower()
    if kind == AttributeType.PHONE_NUMBER:
        return f"+1{AREAS[number % len(AREAS)]}55501{number // len(AREAS) % 100:02}"
    if kind == AttributeType.NAME:
        made = pick(LAST, 1) if "last" in part.lower() else pick(FIRST, 0) if part else f"{pick(FIRST, 0)} {pick(LAST, 1)}"
    elif kind == AttributeType.ADDRESS and len(value) <= 3:
        made = ("GB", "FR", "DE", "US")[digest[16] % 4]
    elif kind == AttributeType.ADDRESS and any(letter.isdigit() for letter in value):
        made = f"{number % 200 + 1} {pick(WORDS, 0).capitalize()} Street" if " " in value else f"{number % 90000 + 10000}"
    else:
        length = min(len(value.split()), MOST_WORDS)
        made = " ".join(pick(WORDS, place + digest[place % 16]) for place in range(length)).capitalize()
    return f"{made} {digest[:6].hex()}" if is_unique else made


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def scan(mask: Mask, texts: Iterable[tuple[str, str]]) -> None:
    """Raise DifferenceError if a written text, given with its place, contains a masked source value."""
    for place, text in texts:
        if mask.leak_in(text) is not None:
            raise DifferenceError(
                f"{place} contains a value that should be masked; the folder was removed",
                hint='keep = ["OBJECT.ATTR"] in org.toml names attributes whose values may be shown',
                code="leak",
            )
