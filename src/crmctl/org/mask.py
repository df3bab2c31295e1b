"""Replace personal values by invented ones, and prove that none is left.

Equal values of one kind get equal replacements, whatever the object. crmctl masks every value that is not known to be harmless or kept by
name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from crmctl.errors import DifferenceError, RejectedError, UsageError, reason
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType
from crmctl.org.folder import ACTIVITY_ROWS, MEMBER_ROWS, SETTINGS
from crmctl.values.composites import fold, usual_name

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

VOCABULARY = "\0".join([*FIRST, *LAST, *WORDS, *DOMAINS]).lower()
"""Words of masked values. A text inside one word is no leak; a NUL keeps two words from being one text."""

FORM = frozenset(["value", "label", "type", "kind", "id", "number", "code", "countrycode", "extension", "isprimary", "primary"])
"""Folded keys of objects that tell the form of a value. Other keys, except parts of composites, may be personal."""

HARMLESS = frozenset(
    {
        AttributeType.SELECT, AttributeType.NUMBER, AttributeType.DATE, AttributeType.CHECKBOX, AttributeType.CURRENCY,
        AttributeType.REFERENCE,
    }
)  # fmt: skip


OTHER_FIELDS: Mapping[str, Mapping[str, Attribute]] = {
    ACTIVITY_ROWS: {name: Attribute(id=name, slug=name, type=AttributeType.TEXT) for name in ("title", "summary")},
    MEMBER_ROWS: {kind: Attribute(id=kind, slug=kind, type=kind) for kind in (AttributeType.EMAIL, AttributeType.NAME)},
}
"""The personal fields of rows that are no records. Other sections are left out of a masked folder."""


def read_key(path: str | None) -> bytes:
    """Return the key in a file, or a random one. Raises UsageError for an unreadable or short key."""
    if not path:
        return secrets.token_bytes(32)
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--mask-key {path}: {reason(error)}") from error
    if len(key) < 16:
        raise UsageError(f"--mask-key {path}: a key has at least 16 bytes", hint="head -c 32 /dev/urandom | base64 > FILE")
    return key


class Mask:
    """Replaces values with a secret key. `see` must have seen every row before the first replacement."""

    def __init__(self, key: bytes, objects: Mapping[str, Mapping[str, Attribute]], keep: Collection[str]) -> None:
        """Raises UsageError if `keep` names an attribute that no object has."""
        if unknown := sorted({*keep} - {f"{kind}.{slug}" for kind, attributes in objects.items() for slug in attributes}):
            raise UsageError(f"keep in {SETTINGS} names {unknown[0]}, which does not exist", code="unknown_attribute")
        self._key = key
        self._masked: dict[str, dict[str, Attribute]] = {}
        self._scanned: dict[str, set[str]] = {}
        for kind, attributes in {**objects, **OTHER_FIELDS}.items():
            personal = {slug: attribute for slug, attribute in attributes.items() if attribute.type not in HARMLESS}
            self._masked[kind] = {slug: attribute for slug, attribute in personal.items() if f"{kind}.{slug}" not in keep}
            self._scanned[kind] = {*personal, *(slug for slug, attribute in attributes.items() if attribute.type == AttributeType.SELECT)}
        every = [attribute for attributes in objects.values() for attribute in attributes.values()]
        self._harmless = {text.lower() for attribute in every for text in (attribute.slug, *attribute.options)}
        self._sources: dict[str, set[str]] = {}
        self._unique: set[tuple[str, str]] = set()
        self._made: dict[tuple[str, str], str] = {}
        self._used: dict[str, set[str]] = {}

    def see(self, rows: Iterable[tuple[str, Json]]) -> None:
        """Remember the texts of the values that will be masked, except those that also stand where they stay."""
        texts = set[str]()
        for kind, data in rows:
            for name, value in data.items():
                masked = self._masked[kind].get(name)
                seen = self._harmless if masked is None else texts
                seen.update(text.strip().lower() for text in texts_in(value, masked))
                if masked is not None and masked.is_unique:
                    self._unique.update(_folded(masked, text) for text in texts_in(value))
        for text in texts - self._harmless:
            if len(text) >= SHORTEST and text not in VOCABULARY:
                self._sources.setdefault(text[:SHORTEST], set()).add(text)

    def row(self, kind: str, row_id: str, data: Json) -> Json:
        """Return a row with invented values. Raises DifferenceError if it still contains a masked value."""
        fields = self._masked[kind]
        masked: Json = {name: self._replaced(fields[name], value, "") if name in fields else value for name, value in data.items()}
        for name in masked.keys() & self._scanned[kind]:
            self._refuse_leak(f"{kind.strip()} {row_id}, {name}", masked[name])
        return masked

    def check_schema(self, document: Json) -> None:
        """Raise DifferenceError if a name or a description in a schema contains a masked value."""
        for spec in document["objects"]:
            for name in ("pluralName", "singularName", "description"):
                self._refuse_leak(f"{name} of {spec['slug']}", spec.get(name))
            for attribute in spec["attributes"]:
                self._refuse_leak(f"the name of {spec['slug']}.{attribute['slug']}", attribute.get("name"))

    def _refuse_leak(self, place: str, value: Any) -> None:
        if any(self._leaks(text) for text in texts_in(value)):
            raise DifferenceError(
                f"{place} contains a value that should be masked; the folder was removed",
                hint=f'keep = ["OBJECT.ATTR"] in {SETTINGS} names attributes whose values may be shown',
                code="leak",
            )

    def _leaks(self, text: str) -> bool:
        folded = text.lower()
        starts = range(len(folded) - SHORTEST + 1)
        return any(
            folded.startswith(source, start) for start in starts for source in self._sources.get(folded[start : start + SHORTEST], ())
        )

    def _replaced(self, attribute: Attribute, value: Any, part: str) -> Any:
        """Return the replacement of a value; lists keep their length, objects their parts."""
        if isinstance(value, str):
            return self._text(attribute, value, part) if value.strip() else value
        if isinstance(value, list):
            return [self._replaced(attribute, item, part) for item in value]
        if isinstance(value, Mapping):
            return {
                name if _is_form(attribute, name) else f"key_{self._digest('key', name).hex()[:12]}": self._replaced(attribute, item, name)
                for name, item in value.items()
            }
        return value if value is None or isinstance(value, bool) else 0

    def _digest(self, *texts: str) -> bytes:
        return hmac.new(self._key, "\0".join(texts).encode("utf-8", "surrogatepass"), hashlib.sha256).digest()

    def _text(self, attribute: Attribute, value: str, part: str) -> str:
        kind, folded = _folded(attribute, value)
        is_unique = (kind, folded) in self._unique
        shape = f"{kind}.{part}"
        if (masked := self._made.get((shape, folded))) is not None:
            return masked
        used = self._used.setdefault(shape, set()) if is_unique or kind == AttributeType.EMAIL else set()
        for number in count():
            replacement = _invent(kind, part, value, self._digest(shape, str(number), folded), is_unique=is_unique)
            if replacement not in used and not self._leaks(replacement):
                break
            if number == MOST_TRIES:
                raise RejectedError(f"crmctl cannot invent enough different values of the type {kind}", code="mask_exhausted")
        used.add(replacement)
        self._made[shape, folded] = replacement
        return replacement


def _is_form(attribute: Attribute, key: str) -> bool:
    return usual_name(attribute, key) is not None or fold(key) in FORM


def _folded(attribute: Attribute, value: str) -> tuple[str, str]:
    """Return the type of a text and the text that all its spellings share."""
    kind = attribute.type or AttributeType.TEXT
    return kind, value.strip().lower() if kind == AttributeType.EMAIL else value


def _invent(kind: str, part: str, value: str, digest: bytes, *, is_unique: bool) -> str:
    number = int.from_bytes(digest[:16], "big")

    def pick(words: Sequence[str], place: int) -> str:
        return words[digest[16 + place % 16] % len(words)]

    if kind == AttributeType.EMAIL:
        return f"{pick(FIRST, 0)}.{pick(LAST, 1)}.{digest[:5].hex()}@{pick(DOMAINS, 2)}".lower()
    if kind == AttributeType.PHONE_NUMBER:
        return f"+1{AREAS[number % len(AREAS)]}55501{number // len(AREAS) % 100:02}"
    if kind == AttributeType.NAME:
        replacement = pick(LAST, 1) if "last" in part.lower() else pick(FIRST, 0) if part else f"{pick(FIRST, 0)} {pick(LAST, 1)}"
    elif kind == AttributeType.ADDRESS and len(value) <= 3:
        replacement = ("GB", "FR", "DE", "US")[digest[16] % 4]
    elif kind == AttributeType.ADDRESS and any(letter.isdigit() for letter in value):
        replacement = f"{number % 200 + 1} {pick(WORDS, 0).capitalize()} Street" if " " in value else f"{number % 90000 + 10000}"
    else:
        length = min(len(value.split()), MOST_WORDS)
        replacement = " ".join(pick(WORDS, place + digest[place % 16]) for place in range(length)).capitalize()
    return f"{replacement} {digest[:6].hex()}" if is_unique else replacement


def texts_in(value: Any, attribute: Attribute | None = None) -> Iterator[str]:
    """Yield every text in a value, and the keys of objects. `attribute`: without the keys that a mask of its values leaves."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item, attribute)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if attribute is None or not _is_form(attribute, key):
                yield key
            yield from texts_in(item, attribute)
