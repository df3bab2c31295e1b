"""Values that completion offers: profiles, jobs and, from the cache, slugs, names and conditions. Reads only local files."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from crmctl.client.schema_cache import Items, SchemaCache
from crmctl.clock import SystemClock
from crmctl.config.settings import Paths, load_settings
from crmctl.models.jsontext import Json
from crmctl.values.attribute_types import PART_NAMES, Family, type_of
from crmctl.values.filters import LISTS
from crmctl.values.operators import SIGNS, VALUELESS, Kind, Operator

PLAIN = re.compile(r"[\w.\-]+")
"""Shells expand the candidates, so only plain words are offered."""
JOB = re.compile(r"\d{8}-\w{5}", re.ASCII)
UNDOABLE = """state IN ('open', 'finished') AND rows > 0 AND (json_extract(header, '$.kind') IS NOT 'delete'
    OR EXISTS (SELECT 1 FROM fact WHERE kind = '' AND key = 'backup'))"""
NAME = re.compile(r"[\w.\-]+(?: [\w.\-]+)*")
"""Names of reports and workflows may hold single blanks."""
TIMES = ("created_at", "updated_at")
UNITS = ("day", "week", "month", "quarter", "year")

_KINDS: dict[Family, tuple[Kind, ...]] = {
    Family.NUMBER: (Kind.EQUALITY, Kind.ORDER),
    Family.DATE: (Kind.EQUALITY, Kind.ORDER),
    Family.TEXT: (Kind.EQUALITY, Kind.PATTERN),
    Family.CHOICE: (Kind.EQUALITY, Kind.PATTERN),
    Family.IDENTITY: (Kind.EQUALITY,),
    Family.TRUTH: (Kind.TRUTH,),
}
"""The useful operators of each family."""

_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
_WORD = "|".join(sorted((*(operator for operator in Operator if operator not in VALUELESS), *LISTS), key=len, reverse=True))
_BEFORE_VALUE = re.compile(rf"(?P<target>[\w.\-]+)(?:\s*(?:{_SIGN})\s*|\s+(?:{_WORD})\s+(?:[^,]*,\s*)*)", re.IGNORECASE)
_BEFORE_OPERATOR = re.compile(r"(?P<target>[\w.\-]+)\s+")


class Values:
    """Values of a kind for a command line that names this object and profile."""

    def __init__(self, environ: Mapping[str, str], object_slug: str, profile: str) -> None:
        self._environ, self._object, self._profile = environ, object_slug, profile

    def profiles(self) -> list[str]:
        paths = Paths.from_environment(self._environ)
        return sorted(load_settings(self._environ, {"profile": self._profile or None}, paths).file.profiles)

    def jobs(self, condition: str = "") -> list[str]:
        """Return the jobs of this machine, or those whose journals meet a condition."""
        folders = (Paths.from_environment(self._environ).state / "jobs").iterdir()
        named = [folder for folder in folders if JOB.fullmatch(folder.name) and folder.is_dir()]
        return sorted((folder.name for folder in named if not condition or _journal_meets(folder, condition)), reverse=True)

    def undoable(self) -> list[str]:
        return self.jobs(UNDOABLE)

    def resumable(self) -> list[str]:
        return self.jobs("state IN ('checking', 'open')")

    def _kept(self, name: str) -> Items:
        """Return a cached list, however old: better than none while the user types."""
        paths = Paths.from_environment(self._environ)
        settings = load_settings(self._environ, {"profile": self._profile or None}, paths)
        cache = SchemaCache(paths.cache, settings.profile.value, settings.require_origin(), SystemClock())
        return cache.get(name, math.inf) or []

    def reports(self, kind: str = "reports") -> list[str]:
        """Return the names that only one report has; no other name can be used."""
        names = [item.get("name") for item in self._kept(kind)]
        return [name for name in names if isinstance(name, str) and NAME.fullmatch(name) and names.count(name) == 1]

    def workflows(self) -> list[str]:
        return self.reports("workflows")

    def objects(self) -> list[str]:
        return _slugs(self._kept("objects"))

    def _items(self, name: str) -> Items:
        """Return the attributes of an object, by its slug or id."""
        identities = (str(item.get("id")) for item in self._kept("objects") if name in (item.get("slug"), item.get("id")))
        return self._kept(next(identities, name))

    def _parent(self, attribute: Json) -> list[str]:
        """Return the slugs of the objects that a reference may point to."""
        target = (attribute.get("config") or {}).get("allowed_object_id")
        return [name for item in self._kept("objects") if target in (item.get("id"), None) for name in _slugs([item])]

    def _within(self, attribute: Json) -> list[str]:
        """Return the parts of a composite, or the attributes of the record that a reference points to."""
        if attribute.get("type") != "reference":
            return list(PART_NAMES.get(str(attribute.get("type")), {}))
        return list(dict.fromkeys(slug for name in self._parent(attribute) for slug in _slugs(self._items(name))))

    def attributes(self, typed: str = "", _is_quoted: bool = False) -> list[str]:
        """Return the slugs; behind the dot of one, what is within its values."""
        slug, is_inside, _ = typed.partition(".")
        items = self._items(self._object)
        if not is_inside:
            return _slugs(items)
        return [f"{slug}.{name}" for item in items if item.get("slug") == slug for name in self._within(item)]

    def numbers(self) -> list[str]:
        return _slugs([item for item in self._items(self._object) if type_of(str(item.get("type"))).family is Family.NUMBER])

    def groups(self, typed: str, _is_quoted: bool) -> list[str]:
        """Return attributes and times; behind the colon of a date, the units."""
        slug, is_unit, _ = typed.partition(":")
        return [f"{slug}:{unit}" for unit in UNITS] if is_unit else self.sorts(typed, _is_quoted)

    def fields(self, typed: str, _is_quoted: bool) -> list[str]:
        return ["id", *slugs, "createdAt", "updatedAt"] if (slugs := self.attributes(typed)) else []

    def sorts(self, typed: str, _is_quoted: bool) -> list[str]:
        return [*TIMES, *slugs] if (slugs := self.attributes(typed)) else []

    def assignments(self, typed: str, _is_quoted: bool) -> list[str]:
        """Return `slug=`, and behind it the options of a select."""
        slug, is_complete, _ = typed.partition("=")
        if not is_complete:
            return [f"{name}=" for name in self.attributes(typed)]
        attribute = next((item for item in self._items(self._object) if item.get("slug") == slug.rstrip("!:+-")), {})
        options = (attribute.get("config") or {}).get("options") or []
        return [f"{slug}={option}" for option in options if isinstance(option, str) and PLAIN.fullmatch(option)]

    def references(self, typed: str, _is_quoted: bool) -> list[str]:
        """Return `attribute=object.key` step by step: references of the object, then unique attributes of what they point to."""
        references = {item.get("slug"): item for item in self._items(self._object) if item.get("type") == "reference"}
        slug, is_complete, _ = typed.partition("=")
        if not is_complete:
            return [f"{name}=" for name in _slugs(list(references.values()))]
        parents = self._parent(references.get(slug, {}))
        return [f"{slug}={name}.{key}" for name in parents for key in _slugs([item for item in self._items(name) if item.get("isUnique")])]

    def mapped(self, typed: str, _is_quoted: bool) -> list[str]:
        """Return `COLUMN=slug`; the column itself has to be typed."""
        column, is_complete, _ = typed.partition("=")
        return [f"{column}={slug}" for slug in self.attributes()] if is_complete else []

    def conditions(self, typed: str, is_quoted: bool) -> list[str]:
        return complete_condition(typed, is_quoted, self._items(self._object), self._within)


def _journal_meets(job: Path, condition: str) -> bool:
    """Whether the journal of a job can be read and meets a condition."""
    address = f"{(job / 'journal.sqlite').as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as journal:
        return journal.execute(f"SELECT 1 FROM job WHERE {condition}").fetchone() is not None
    return False


def object_slugs(environ: Mapping[str, str], profile: str) -> list[str]:
    """Return the slugs of the cached objects; none without a configuration or a cache."""
    with contextlib.suppress(Exception):
        return Values(environ, "", profile).objects()
    return []


def _slugs(items: Items) -> list[str]:
    slugs = (item.get("slug") for item in items if item.get("isActive") is not False)
    return [slug for slug in slugs if isinstance(slug, str) and PLAIN.fullmatch(slug)]


def complete_condition(text: str, is_quoted: bool, attributes: Sequence[Json], within: Callable[[Json], list[str]]) -> list[str]:
    """Return the conditions that begin with `text`; operators in words hold blanks, so they are offered inside quotes only."""
    text = text.lstrip()
    is_quoted = is_quoted or " " in text
    by_slug = {slug: item for item in attributes if isinstance(slug := item.get("slug"), str) and PLAIN.fullmatch(slug)}
    before_value = _BEFORE_VALUE.match(text)
    if before_value is not None:
        return _values(before_value.group(), by_slug.get(before_value["target"], {}), spaced=is_quoted)
    if not is_quoted:
        return [f"{target}=" for target in _targets(text, by_slug, within)]
    before_operator = _BEFORE_OPERATOR.match(text)
    if before_operator is not None:
        texts = _conditions(before_operator["target"], before_operator.group(), by_slug)
    else:
        targets = [target for target in _targets(text, by_slug, within) if target.startswith(text)]
        target = text if text in targets else targets[0] if len(targets) == 1 else None
        texts = targets if target is None else _conditions(target, f"{target} ", by_slug)
    texts = [condition for condition in texts if condition.startswith(text)]
    # A shell closes the quote after a single candidate, so a second one is offered where a value must follow.
    return [*texts, f"{texts[0]}VALUE"] if len(texts) == 1 and texts[0].endswith(" ") else texts


def _targets(text: str, by_slug: dict[str, Json], within: Callable[[Json], list[str]]) -> list[str]:
    """Return attributes and times; behind the dot of an attribute, what is within its values."""
    slug, dot, _ = text.partition(".")
    if dot:
        return [f"{slug}.{part}" for part in within(by_slug.get(slug, {}))]
    active = [slug for slug, item in by_slug.items() if item.get("isActive") is not False]
    return [*active, *(TIMES if by_slug else ())]


def _conditions(target: str, front: str, by_slug: dict[str, Json]) -> list[str]:
    """Return `front` with each operator of the target, and a blank behind operators that take a value."""
    slug, dot, part = target.partition(".")
    name = str(by_slug.get(slug, {}).get("type"))
    if target in TIMES and target not in by_slug:
        words: list[str] = [*_of_kinds(Kind.ORDER), Operator.EQUALS]
    else:
        family = type_of(name).family if not dot else Family.NUMBER if (name, part) == ("currency", "amount") else Family.TEXT
        lists = LISTS if Kind.EQUALITY in _KINDS[family] else ()
        words = [*_of_kinds(*_KINDS[family]), *lists, *_of_kinds(Kind.PRESENCE)]
    return [f"{front}{word}{'' if word in VALUELESS else ' '}" for word in words]


def _of_kinds(*kinds: Kind) -> list[Operator]:
    return [operator for operator in Operator if operator.meaning.kind in kinds]


def _values(front: str, attribute: Json, *, spaced: bool) -> list[str]:
    """Return `front` with each option of a select."""
    options: Iterable[object] = (attribute.get("config") or {}).get("options") or ()
    fits = NAME if spaced else PLAIN
    return [f"{front}{option}" for option in options if isinstance(option, str) and fits.fullmatch(option)]
