"""A small world for merges on a real service: duplicate contacts, records and activities that refer to them, and random plans.

`snapshot` describes the world without ids, so that tests can compare it before a merge and after its undo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential
from crmctl.dedupe.merge_plan import MergedValue, MergePlanHeader, MergeRecord, PlannedMerge, merge_values, parse_keep, write_merge_plan
from crmctl.models.resources import Attribute, Record
from crmctl.plan.import_records import ApplyRequest
from crmctl.plan.merge_records import MergeResult, merge_records, resume_merges
from crmctl.plan.unmerge import Separation, separate_records
from crmctl.write.jobs import JobStore
from tests.support.bulkcontext import QuietListener
from tests.support.patience import PATIENCE

CONTACTS = {
    "code": {"type": "text", "isRequired": True, "isUnique": True},
    "email": {"type": "email", "isUnique": True},
    "title": {"type": "text"},
    "phone": {"type": "phone_number"},
    "tags": {"type": "list"},
    "score": {"type": "number"},
    "home": {"type": "address"},
}
KEEPS = ["newest", "oldest", "longest", "survivor"]


@dataclass
class MergeContext:
    """The dependencies of a use case, in the test's process."""

    service: Any
    origin: str
    state: Path
    clock: Clock = field(default_factory=SystemClock)
    listener: QuietListener = field(default_factory=QuietListener)
    profile: str = "test"
    key: str = "key"

    def __post_init__(self) -> None:
        self.crm = self.service
        self.directory = Directory(self.service, self.state / "cache", "test", self.origin, self.clock)


def connect(base_url: str, key: str) -> Crm:
    return Crm(Session(base_url, Credential(key, "test", base_url), HttpTransport(), timeout=PATIENCE))


@contextmanager
def merge_context(base_url: str, key: str, state: Path) -> Iterator[MergeContext]:
    crm = connect(base_url, key)
    try:
        yield MergeContext(crm, base_url, state)
    finally:
        crm.session.close()


@dataclass
class World:
    """The objects of one world: `contacts` refer to each other, `tickets` to contacts."""

    crm: Crm
    contacts: str
    tickets: str
    attributes: Sequence[Attribute]
    slug: str
    people: bool = False

    @classmethod
    def make(cls, crm: Crm, slug: str, *, people: bool = False) -> World:
        """Create the objects. With `people`, the contacts are the service's people, who can take part in activities."""

        def an_object(name: str) -> str:
            return crm.create_object({"pluralName": name, "singularName": name, "description": "", "slug": name}).id

        contacts = next(crm_object.id for crm_object in crm.list_objects() if crm_object.slug == "people") if people else an_object(slug)
        tickets = an_object(f"{slug}_tickets")
        to_contacts = {"type": "reference", "config": {"allowed_object_id": contacts}}
        there = {attribute.slug for attribute in crm.list_attributes(contacts)}
        of_tickets = {"code": CONTACTS["code"], "asker": to_contacts, "helper": to_contacts}
        for object_id, attributes in ((contacts, {**CONTACTS, "manager": to_contacts}), (tickets, of_tickets)):
            for name, facts in attributes.items():
                if object_id == tickets or name not in there:
                    crm.create_attribute(object_id, {"name": name, "isRequired": False, "isUnique": False, **facts})
        return cls(crm, contacts, tickets, crm.list_attributes(contacts), slug, people)

    def fill(self, chance: random.Random, groups: int, alone: int = 2) -> list[list[str]]:
        """Create random contacts with related data. Return the groups of ids to merge."""
        sizes = [chance.randint(2, 4) for _ in range(groups)] + [1] * alone
        ids = [[self._contact(chance, f"c{group}.{number}") for number in range(size)] for group, size in enumerate(sizes)]
        everyone = [record_id for group in ids for record_id in group]
        for record_id in everyone:
            if chance.random() < 0.4:
                self.crm.update_record(self.contacts, record_id, {"manager": chance.choice(everyone)})
        for number in range(groups * 2):
            data = {"code": f"t{number}", "asker": chance.choice(everyone), "helper": chance.choice([None, *everyone])}
            self.crm.create_record(self.tickets, {slug: value for slug, value in data.items() if value})
        also = random.Random(str(chance.getstate()))
        for number in range(groups):
            links = [{"objectId": self.contacts, "recordId": record_id} for record_id in chance.sample(everyone, chance.randint(1, 3))]
            people = [{"type": "person", "id": record_id} for record_id in also.sample(everyone, also.randint(0, 3) if self.people else 0)]
            self.crm.create_activity({"title": f"{self.slug} {number}", "summary": "", "linkedRecords": links, "participants": people})
        return ids[:groups]

    def _contact(self, chance: random.Random, code: str) -> str:
        data: dict[str, Any] = {"code": f"{self.slug}-{code}"}
        choices: dict[str, Any] = {
            "email": f"{code}@x.com",
            "title": chance.choice(["Dr", "Engineer", "Chief engineer"]),
            "phone": f"+44207946{chance.randint(1000, 9999)}",
            "tags": chance.sample(["a", "b", "c", "d"], 2),
            "score": chance.randint(0, 9),
            "home": {"street": "1 High St", "city": chance.choice(["London", "Paris"])},
        }
        data |= {slug: value for slug, value in choices.items() if chance.random() < 0.7}
        return self.crm.create_record(self.contacts, data).id

    def records(self, object_id: str) -> list[Record]:
        return [record for offset in (0, 100, 200) for record in self.crm.list_records(object_id, limit=100, offset=offset).items]

    def plan(
        self, chance: random.Random, groups: Sequence[Sequence[str]], path: Path, origin: str, *, by_hand: bool = False
    ) -> list[PlannedMerge]:
        """Write a random plan that merges these groups; with `by_hand`, some values come from no record."""
        known = {record.id: record for record in self.records(self.contacts)}
        merges = []
        for number, ids in enumerate(groups, 1):
            records = tuple(
                MergeRecord(record_id, known[record_id].data, known[record_id].created_at, known[record_id].updated_at) for record_id in ids
            )
            survivor = chance.choice(ids)
            keep = parse_keep([f"{slug}={chance.choice(KEEPS)}" for slug in CONTACTS] + ["tags=union"], self.attributes)
            values: dict[str, MergedValue] = merge_values(records, survivor, keep, self.attributes)
            if by_hand:
                values |= _by_hand(chance, ids, values)
            merges.append(
                PlannedMerge(number, 1.0, (), survivor, tuple(record_id for record_id in ids if record_id != survivor), values, records)
            )
        header = MergePlanHeader(self.slug, self.contacts, origin, "1", "2026-01-01T00:00:00Z", [], [], None)
        write_merge_plan(path, header, merges)
        return merges

    def snapshot(self) -> dict[str, Any]:
        """Return everything by name: contacts and tickets by code, activities by title, references and links by code."""
        contacts = self.records(self.contacts)
        names = {record.id: str(record.data.get("code")) for record in contacts}

        def with_names(data: dict[str, Any]) -> dict[str, Any]:
            return {slug: names.get(value, value) if isinstance(value, str) else value for slug, value in data.items()}

        found: dict[str, Any] = {names[record.id]: with_names(record.data) for record in contacts}
        found |= {f"ticket {record.data['code']}": with_names(record.data) for record in self.records(self.tickets)}
        for activity in self.activities():
            linked = sorted(names.get(link["recordId"], link["recordId"]) for link in activity.wire["linkedRecords"])
            found[str(activity.title)] = [
                linked,
                sorted(names.get(participant["id"], participant["id"]) for participant in activity.wire["participants"]),
            ]
        return found

    def remove(self) -> None:
        """Delete everything of this world."""
        for activity in self.activities():
            self.crm.delete_activity(activity.id)
        self.crm.delete_object(self.tickets)
        if not self.people:
            self.crm.delete_object(self.contacts)
        elif ids := [record.id for record in self.records(self.contacts)]:
            self.crm.bulk_delete(self.contacts, ids)

    def activities(self) -> list[Any]:
        return [activity for activity in self.crm.list_activities(limit=100).items if str(activity.title).startswith(f"{self.slug} ")]

    def check_merged(self, merges: Sequence[PlannedMerge]) -> None:
        """Check that losers and references to them are gone and survivors have the planned values."""
        records = {record.id: record for record in self.records(self.contacts)}
        gone = {loser: merge.survivor for merge in merges for loser in merge.losers}
        assert not gone.keys() & records.keys()
        named = [
            value for record in (*records.values(), *self.records(self.tickets)) for value in record.data.values() if isinstance(value, str)
        ]
        named += [link["recordId"] for activity in self.activities() for link in activity.wire["linkedRecords"]]
        named += [participant["id"] for activity in self.activities() for participant in activity.wire["participants"]]
        assert not gone.keys() & set(named)
        for merge in merges:
            for slug, merged in merge.values.items():
                wanted = gone.get(merged.value, merged.value) if slug == "manager" else merged.value
                assert records[merge.survivor].data.get(slug) == wanted, (merge.survivor, slug)


def _by_hand(chance: random.Random, ids: Sequence[str], values: dict[str, MergedValue]) -> dict[str, MergedValue]:
    """Return some values that a person wrote."""
    written: dict[str, Any] = {
        "email": f"{ids[0]}@hand.com", "title": "By hand", "score": 42, "tags": ["hand"], "code": f"hand {ids[0]}", "phone": None,
    }  # fmt: skip
    return {slug: MergedValue(value, (), "") for slug, value in written.items() if slug in values and chance.random() < 0.3}


def apply(context: Any, path: Path) -> MergeResult:
    return merge_records(context, ApplyRequest(file=str(path)), lambda _: None)


def newest_job(context: Any) -> Any:
    return JobStore(context.state, context.clock).list()[0]


def resume(context: Any) -> MergeResult:
    return resume_merges(context, newest_job(context))


def unmerge(context: Any) -> Separation:
    return separate_records(context, newest_job(context), lambda _: None)


WRITES = frozenset({"bulk_write", "bulk_delete", "create_record", "update_activity"})


class Crash(BaseException):
    """A simulated end of a process."""


class CrashingService:
    """A client that ends the process at its `at`-th write (from 1), `before` it is sent or `after` its answer; 0 only counts."""

    def __init__(self, crm: Crm, at: int = 0, when: str = "before", end: Callable[[], None] | None = None) -> None:
        self.writes = 0
        self._crm = crm
        self._at = at
        self._when = when
        self._end = end

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._crm, name)
        if name not in WRITES:
            return call

        def counted(*arguments: Any, **options: Any) -> Any:
            self.writes += 1
            self._crash("before")
            answer = call(*arguments, **options)
            self._crash("after")
            return answer

        return counted

    def _crash(self, when: str) -> None:
        if self.writes == self._at and when == self._when:
            if self._end is not None:
                self._end()
            raise Crash
