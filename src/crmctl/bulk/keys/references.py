"""References given by what tells a record apart (`companies.domain`) instead of its id: looked up once, kept with the job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.findings import Finding
from crmctl.bulk.keys.index import KeyIndex
from crmctl.bulk.keys.lookups import Lookup
from crmctl.bulk.keys.rules import KeyRule, key_rule
from crmctl.bulk.payloads.forms import fold
from crmctl.bulk.payloads.validation import Payload
from crmctl.bulk.records.listing import Lister
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType

FILE_NAME = "references.sqlite"
NAMED_IDS = 5


@dataclass(frozen=True)
class Reference:
    """The attribute `slug` is given by the attribute `key` (of this `type` and `config`) of the object it points to."""

    slug: str
    object: str
    object_id: str
    key: str
    type: str
    config: dict[str, Any] | None = None

    @property
    def rule(self) -> KeyRule:
        return KeyRule((Attribute(id=self.key, slug=self.key, type=self.type, config=self.config),))

    def stand_in(self, attribute: Attribute) -> Attribute:
        """The attribute as the file fills it: typed like the key."""
        return attribute.model_copy(update={"type": self.type, "config": self.config, "is_unique": False})

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


TargetOf = Callable[[str], tuple[str, Sequence[Attribute]]]
"""The id and the attributes of an object."""


def parse_references(given: Iterable[str], attributes: Sequence[Attribute], target_of: TargetOf) -> tuple[Reference, ...]:
    """From `--ref ATTR=OBJECT.KEY`. Raises UsageError for what cannot be, and what looking up the object raises."""
    known = {attribute.slug: attribute for attribute in attributes}
    found: dict[str, Reference] = {}
    for text in given:
        slug, _, rest = text.partition("=")
        name, _, key = rest.partition(".")
        if not (slug and name and key):
            raise UsageError(f"--ref: not ATTR=OBJECT.KEY: {text}", hint="for example --ref company=companies.domain")
        attribute = known.get(slug)
        if attribute is None or attribute.type != AttributeType.REFERENCE:
            raise UsageError(f"--ref: {slug} is not a reference attribute", code="unknown_attribute")
        object_id, of_target = target_of(name)
        if attribute.target_object_id not in (None, object_id):
            raise UsageError(f"--ref: {slug} does not point to {name}", code="wrong_object")
        (told,) = key_rule([key], of_target, "--ref").attributes
        found[slug] = Reference(slug, name, object_id, key, str(told.type), told.config)
    return tuple(found.values())


def columns_of(header: Sequence[str], slug: str) -> Iterator[tuple[str, str]]:
    """The columns that name a key of a reference, `company.domain`: each with the key."""
    for column in header:
        left, dot, key = column.strip().partition(".")
        if dot and fold(left) == fold(slug) and key:
            yield column, key


def references_in(header: Sequence[str], attributes: Sequence[Attribute], given: Iterable[str], name_of: Callable[[str], str]) -> list[str]:
    """The `--ref` that columns like `company.domain` say by themselves, of attributes that none is given for. `name_of` names an object."""
    known = {text.partition("=")[0] for text in given}
    return [
        f"{attribute.slug}={name_of(attribute.target_object_id)}.{key}"
        for attribute in attributes
        if attribute.type == AttributeType.REFERENCE and attribute.slug not in known and attribute.target_object_id is not None
        for _, key in columns_of(header, attribute.slug)
    ]


def stand_ins(attributes: Sequence[Attribute], references: Sequence[Reference]) -> list[Attribute]:
    """The attributes as the file fills them."""
    by_slug = {reference.slug: reference for reference in references}
    return [found.stand_in(each) if (found := by_slug.get(each.slug)) is not None else each for each in attributes]


class ReferenceMap:
    """Which record each value means; in the job's folder, or, without one, gone when closed. `nulls`: what means none becomes null."""

    def __init__(self, references: Sequence[Reference], folder: Path | None = None, *, nulls: bool = False) -> None:
        self._references = [(reference, reference.rule) for reference in references]
        self._nulls = nulls
        path = folder / FILE_NAME if folder is not None else None
        if path is not None:
            path.touch(mode=0o600)
        self._db = sqlite3.connect(path or "", isolation_level=None)
        self._db.execute("CREATE TABLE IF NOT EXISTS meant (slug TEXT, key TEXT, ids TEXT NOT NULL, PRIMARY KEY (slug, key)) WITHOUT ROWID")

    def close(self) -> None:
        self._db.close()

    def learn(self, payloads: Callable[[], Iterable[Payload]], lister: Lister) -> int:
        """Look up every value of the input. Returns how many requests that took; raises what reading raises."""
        requests = 0
        for reference, rule in self._references:
            with KeyIndex(rule) as index:
                number = 0
                for payload in payloads():
                    for value in _values(payload.data.get(reference.slug)):
                        number += 1
                        index.want(number, payload.first_line, payload.last_line, {reference.key: value})
                lookup = Lookup(lister, reference.object_id)
                lookup.fill(index)
                requests += lookup.requests
                self._db.execute("BEGIN")
                for key in index.distinct():
                    ids = [record_id for record_id, _ in index.found(key)]
                    self._db.execute("INSERT OR REPLACE INTO meant VALUES (?, ?, ?)", (reference.slug, key, jsontext.dumps(ids)))
                self._db.execute("COMMIT")
        return requests

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """The rows with ids in place of values; a value that means no record, or several, is an error of its row."""
        for payload in payloads:
            yield self._translated(payload)

    def _translated(self, payload: Payload) -> Payload:
        data, findings = dict(payload.data), list(payload.findings)
        for reference, rule in self._references:
            value = data.get(reference.slug)
            if value is None:
                continue
            meant = [self._meaning(reference, rule, one, findings, payload) for one in _values(value)]
            data[reference.slug] = [one for one in meant if one is not None] if isinstance(value, list) else meant[0]
        return payload._replace(data=data, findings=findings)

    def _meaning(self, reference: Reference, rule: KeyRule, value: Any, findings: list[Finding], payload: Payload) -> str | None:
        key = rule.key({reference.key: value})
        row = self._db.execute("SELECT ids FROM meant WHERE slug = ? AND key = ?", (reference.slug, key)).fetchone()
        ids: list[str] = jsontext.loads(row[0]) if row is not None else []
        if len(ids) == 1:
            return ids[0]
        told = f"{reference.object}.{reference.key}"
        if not ids and self._nulls:
            return None
        if ids:
            named = ", ".join(ids[:NAMED_IDS]) + (", ..." if len(ids) > NAMED_IDS else "")
            finding = Finding("ambiguous_reference", f"{len(ids)} records have this {told}: {named}", hint="merge or delete the duplicates")
        else:
            hint = f"create it first, or --on-missing-ref null leaves {reference.slug} empty"
            finding = Finding("missing_reference", f"no record has this {told}", hint=hint)
        findings.append(finding.at(payload.ordinal, payload.first_line, payload.last_line).on(reference.slug, value))
        return None


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
