"""A service that implements the specification only, over real sockets, without extensions or any code of crmctl's own service."""

from __future__ import annotations

import json
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Self

from tests.support.fakecrm import KEY, Answer, FakeCrm, FakeRequest
from tests.support.service import make_client

STANDARD: dict[str, list[dict[str, Any]]] = {
    "companies": [{"name": "Name", "type": "text", "isRequired": True}, {"name": "Domain", "type": "text", "isUnique": True}],
    "people": [
        {"name": "Email", "type": "email", "isUnique": True}, {"name": "Name", "type": "name"}, {"name": "Job title", "type": "text"},
        {"name": "Company", "type": "reference", "config": {"allowed_object_id": "companies"}},
    ],
    "deals": [
        {"name": "Name", "type": "text", "isRequired": True}, {"name": "Amount", "type": "currency"},
        {"name": "Stage", "type": "select", "config": {"options": ["lead", "qualified", "proposal", "negotiation", "won", "lost"]}},
        {"name": "Contact", "type": "reference", "config": {"allowed_object_id": "people"}},
    ],
}  # fmt: skip
USER = {"id": str(uuid.uuid4()), "name": "Owner", "email": "owner@example.com"}


class Refused(Exception):
    """A 400 with this message."""


class PlainService(FakeCrm):
    """A context manager with the attributes of a RunningService that tests of organizations use."""

    def __init__(self) -> None:
        super().__init__({})
        self.objects: dict[str, dict[str, Any]] = {}
        self.attributes: dict[str, dict[str, dict[str, Any]]] = {}
        self.records: dict[str, dict[str, dict[str, Any]]] = {}
        self.activities: dict[str, dict[str, Any]] = {}
        self.reports = [{"id": str(uuid.uuid4()), "name": "Pipeline"}]
        self._turn = threading.Lock()
        for slug, attributes in STANDARD.items():
            crm_object = self._create_object({"slug": slug, "pluralName": slug.capitalize()}, "standard")
            for body in attributes:
                target = (body.get("config") or {}).get("allowed_object_id")
                config = {"config": {"allowed_object_id": self.object_id(target)}} if target else {}
                self._create_attribute(crm_object["id"], {**body, **config})

    @property
    def base_url(self) -> str:
        return self.origin

    key = KEY

    def __enter__(self) -> Self:
        super().__enter__()
        self.client = make_client(self.origin, KEY)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.client.close()
        super().__exit__(kind, *error)

    def object_id(self, slug: str) -> str:
        return next(crm_object["id"] for crm_object in self.objects.values() if crm_object["slug"] == slug)

    def _answer(self, asked: FakeRequest, inside: bool) -> Answer:
        if not inside or asked.headers.get("authorization") != f"Bearer {KEY}":
            return Answer(401, {"error": "unauthorized", "message": "no valid key"})
        with self._turn:
            try:
                return Answer(
                    200, self._work(asked.method, asked.path.strip("/").split("/"), asked.query, asked.json if asked.body else {})
                )
            except KeyError:
                return Answer(404, {"error": "not_found", "message": f"no {asked.path}"})
            except Refused as problem:
                return Answer(400, {"error": "bad_request", "message": str(problem)})

    def _work(self, method: str, path: list[str], query: Any, body: Any) -> Any:
        match method, path:
            case "GET", ["objects"]:
                return {"objects": list(self.objects.values())}
            case "POST", ["objects"]:
                return self._create_object(body, "custom")
            case "GET", ["objects", object_id]:
                return {**self.objects[object_id], "attributes": list(self.attributes[object_id].values())}
            case "PATCH", ["objects", object_id]:
                return self.objects[object_id] | body
            case "DELETE", ["objects", object_id]:
                for table in (self.objects, self.attributes, self.records):
                    table.pop(object_id)
                return {}
            case "GET", ["objects", object_id, "attributes"]:
                return {"attributes": list(self.attributes[object_id].values())}
            case "POST", ["objects", object_id, "attributes"]:
                return self._create_attribute(object_id, body)
            case "PATCH", ["objects", object_id, "attributes", attribute_id]:
                self.attributes[object_id][attribute_id].update(body)
                return self.attributes[object_id][attribute_id]
            case "DELETE", ["objects", object_id, "attributes", attribute_id]:
                return self.attributes[object_id].pop(attribute_id) and {}
            case "GET", ["objects", object_id, "records"]:
                return self._page(object_id, query)
            case "POST", ["objects", object_id, "records", "search"]:
                return self._page(object_id, {**body, **{f"_{name}": value for name, value in body.get("sort", {}).items()}})
            case "POST", ["objects", object_id, "records"]:
                return self._create(object_id, body["data"])
            case "POST", ["objects", object_id, "records", "bulk"]:
                return self._bulk(object_id, body)
            case "DELETE", ["objects", object_id, "records", "bulk"]:
                return {"deleted": sum(self.records[object_id].pop(record_id, None) is not None for record_id in body["ids"])}
            case "GET", ["objects", object_id, "records", record_id]:
                return self.records[object_id][record_id]
            case "PATCH", ["objects", object_id, "records", record_id]:
                return self._update(object_id, record_id, body["data"])
            case "DELETE", ["objects", object_id, "records", record_id]:
                return self.records[object_id].pop(record_id) and {}
            case "GET", ["activities"]:
                first = int(query.get("offset", 0))
                return {"activities": [*reversed(self.activities.values())][first : first + int(query.get("limit", 50))]}
            case "POST", ["activities"]:
                row = {"id": str(uuid.uuid4()), **body, "createdAt": now(), "updatedAt": now()}
                return self.activities.setdefault(row["id"], row)
            case "PATCH", ["activities", activity_id]:
                self.activities[activity_id].update(body, updatedAt=now())
                return self.activities[activity_id]
            case "DELETE", ["activities", activity_id]:
                return self.activities.pop(activity_id) and {}
            case "GET", ["activities", activity_id]:
                return self.activities[activity_id]
            case "GET", ["members"]:
                return {"members": [{"id": USER["id"], "role": "owner", "createdAt": now(), "user": USER}]}
            case "GET", ["reports"]:
                return {"reports": self.reports}
        raise KeyError(path)

    def _create_object(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        crm_object = {"id": str(uuid.uuid4()), "type": kind, "isActive": True, "singularName": body["pluralName"], **body}
        self.attributes[crm_object["id"]], self.records[crm_object["id"]] = {}, {}
        return self.objects.setdefault(crm_object["id"], crm_object)

    def _create_attribute(self, object_id: str, body: dict[str, Any]) -> dict[str, Any]:
        slug = "_".join("".join(letter if letter.isalnum() else " " for letter in body["name"].lower()).split())
        known = self.attributes[object_id]
        if any(attribute["slug"] == slug for attribute in known.values()):
            raise Refused(f"{slug} is there already")
        plain = {"isRequired": False, "isUnique": False, "isList": False, "config": None}
        attribute = {"id": str(uuid.uuid4()), **plain, **body, "slug": slug, "isActive": True, "displayOrder": len(known)}
        return known.setdefault(attribute["id"], attribute)

    def _page(self, object_id: str, query: Any) -> dict[str, Any]:
        field = {"created_at": "createdAt", "updated_at": "updatedAt"}[query.get("_field") or query.get("sort") or "created_at"]
        direction = query.get("_order") or query.get("order") or "desc"
        found = [
            record
            for record in self.records[object_id].values()
            if all(self._meets(record, condition) for condition in self._filters(query))
        ]
        found.sort(key=lambda record: record[field], reverse=direction == "desc")
        limit, offset = int(query.get("limit", 50)), int(query.get("offset", 0))
        return {"records": found[offset : offset + limit], "pagination": {"total": len(found), "limit": limit, "offset": offset}}

    def _filters(self, query: Any) -> list[tuple[str, str, str]]:
        listed = [(condition["attributeSlug"], condition["operator"], condition.get("value")) for condition in query.get("filters", ())]
        named = [[*name[7:-1].split("]["), value] for name, value in query.items() if name.startswith("filter[")]
        return [*listed, *((slug, operator, value) for slug, operator, value in named)]

    def _meets(self, record: dict[str, Any], condition: tuple[str, str, str]) -> bool:
        slug, operator, value = condition
        held = record["data"].get(slug)
        if operator in ("isEmpty", "isNotEmpty"):
            return (held in (None, "", [])) is (operator == "isEmpty")
        if operator != "equals":
            raise Refused(f"{operator} is not known here")
        return str(held) == value

    def _create(self, object_id: str, data: dict[str, Any]) -> dict[str, Any]:
        self._check(object_id, data, None)
        record = {"id": str(uuid.uuid4()), "data": {slug: value for slug, value in data.items() if value is not None}}
        record["createdAt"] = record["updatedAt"] = now()
        return self.records[object_id].setdefault(record["id"], record)

    def _update(self, object_id: str, record_id: str, data: dict[str, Any]) -> dict[str, Any]:
        record = self.records[object_id][record_id]
        self._check(object_id, data, record_id)
        record["data"] = {slug: value for slug, value in {**record["data"], **data}.items() if value is not None}
        record["updatedAt"] = now()
        return record

    def _check(self, object_id: str, data: dict[str, Any], own_id: str | None) -> None:
        for attribute in self.attributes[object_id].values():
            value = data.get(attribute["slug"])
            rivals = (record for record in self.records[object_id].values() if record["id"] != own_id)
            if attribute["isUnique"] and value is not None and any(record["data"].get(attribute["slug"]) == value for record in rivals):
                raise Refused(f"{attribute['slug']} must be unique: {value}")
        if unknown := data.keys() - {attribute["slug"] for attribute in self.attributes[object_id].values()}:
            raise Refused(f"unknown attributes: {sorted(unknown)}")

    def _bulk(self, object_id: str, body: dict[str, Any]) -> dict[str, Any]:
        counts: dict[str, Any] = {"created": 0, "updated": 0, "failed": []}
        for index, item in enumerate(body["records"]):
            try:
                if body.get("mode") == "upsert" and item.get("id"):
                    self._update(object_id, item["id"], item["data"])
                    counts["updated"] += 1
                else:
                    self._create(object_id, item["data"])
                    counts["created"] += 1
            except (KeyError, Refused) as problem:
                counts["failed"].append({"index": index, "error": str(problem)})
        return json.loads(json.dumps(counts))


def now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
