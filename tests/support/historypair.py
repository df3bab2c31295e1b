"""A service in memory with people, companies they refer to, and activities about both; they share clock, history and backups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crmctl.client.answers import Page
from crmctl.mirror.file import ACTIVITIES
from crmctl.models.resources import Activity, Attribute, Object, Record
from tests.support.historyservice import HistoryService, StoredRow, Truth, timestamp

COMPANIES_ID = "00000000-0000-4000-8000-000000000002"


@dataclass(frozen=True)
class StoredActivity(StoredRow):
    def wire(self) -> dict[str, Any]:
        times = {"createdAt": timestamp(self.created), "updatedAt": timestamp(self.updated)}
        return {"id": self.id, "title": self.data["n"], "linkedRecords": [dict(self.data["link"])] if self.data["link"] else [], **times}


@dataclass
class Part(HistoryService):
    """One object of a larger service."""

    whole: HistoryService = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = self.whole.clock

    @property
    def now(self) -> int:
        return self.whole.now

    def clean_up(self) -> None:
        self.whole.clean_up()

    def advance(self, micros: int) -> None:
        self.whole.advance(micros)

    def _answer(self) -> str | None:
        return self.whole._answer()


@dataclass
class Activities(Part):
    def create(self, count: int, late: int = 0) -> None:
        stamp, made = self.stamp, []
        for _ in range(count):
            self.numbers += 1
            made.append(StoredActivity(self.numbers, self._new_id(), stamp, stamp, {"n": f"call {self.numbers}", "link": self._link()}))
        self._write(lambda: self._put(made), late)

    def _link(self) -> dict[str, str] | None:
        part = self.chance.choice(self.whole.parts[:2])
        return {"objectId": part.object_id, "recordId": self.chance.choice(list(part.rows))} if part.rows else None

    def drop_attribute(self, *, remake: bool) -> None:
        """Activities have no attributes."""


@dataclass
class PairService(HistoryService):
    """A service whose own records are people, with the parts `companies` and `activities`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.companies = Part(self.seed + 1, self.manners, object_id=COMPANIES_ID, whole=self)
        self.activities = Activities(self.seed + 2, self.manners, object_id=ACTIVITIES, whole=self)
        self.attributes.append(self._attribute("company"))

    @property
    def parts(self) -> Sequence[HistoryService]:
        return (self, self.companies, self.activities)

    def _attribute(self, slug: str) -> Attribute:
        if slug != "company":
            return super()._attribute(slug)
        config = {"allowed_object_id": COMPANIES_ID}
        return Attribute.parse({"id": self._new_id(), "slug": slug, "name": slug, "type": "reference", "config": config, "isActive": True})

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        if "company" in data:
            data["company"] = self.chance.choice(list(self.companies.rows)) if self.companies.rows else None
        return data

    def _come(self) -> None:
        super()._come()
        for part in self.parts[1:]:
            part._come()

    def _look(self) -> None:
        super()._look()
        for part in self.parts[1:]:
            part._look()

    def begin(self, *, again: bool = False) -> Truth:
        for part in self.parts[1:]:
            part.begin(again=again)
        return super().begin(again=again)

    def clean_up(self) -> None:
        for one, row in list(self.rows.items()):
            if (company := row.data.get("company")) is not None and company not in self.companies.rows:
                self.overwrite(one, {**row.data, "company": None})
        there = self.rows.keys() | self.companies.rows.keys()
        for one, row in list(self.activities.rows.items()):
            if row.data["link"] and row.data["link"]["recordId"] not in there:
                self.activities.overwrite(one, {**row.data, "link": None})

    # -- answers -------------------------------------------------------------------------------------------------------------------------

    def list_records(self, object_id: str, **asked: Any) -> Page[Record]:
        if object_id == COMPANIES_ID:
            return self.companies.list_records(object_id, **asked)
        return super().list_records(object_id, **asked)

    def get_record(self, object_id: str, record_id: str) -> Record:
        if object_id == COMPANIES_ID:
            return self.companies.get_record(object_id, record_id)
        return super().get_record(object_id, record_id)

    def list_objects(self) -> list[Object]:
        wire = {"id": COMPANIES_ID, "slug": "companies", "type": "standard", "isActive": True}
        return [*super().list_objects(), Object.parse(wire)]

    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        if object_id == COMPANIES_ID:
            return self.companies.list_attributes(object_id)
        return super().list_attributes(object_id)

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        date, part = self._answer(), self.activities
        rows = part._in_order(False, -1)
        items = [Activity.parse(row.wire()) for row in rows[offset : offset + min(limit, self.manners.cap)]]
        return Page(items, len(rows) if self.manners.gives_total else None, limit, offset, date)
