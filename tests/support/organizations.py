"""Random organizations for tests: every attribute type, cycles, self references, lists of references, Unicode and money."""

from __future__ import annotations

import random
from typing import Any

from tests.support.service import RunningService

WORDS = ("Ada", "Grâce", "Zoë", "李", "Müller", "O'Brien", "naïve", "🚀", "a b", "x\u2028y", '"quoted"', "10%", "=1+1", "-", "NULL")
NAMES = tuple(word.replace("\u2028", "\u00a0") for word in WORDS)
"""Words for names, which may not hold line breaks."""
COUNTRIES = ("GB", "FR", "DE")


def furnish(service: RunningService, seed: int, records: int = 12) -> dict[str, list[str]]:
    """Fill a fresh service; return the ids of the records by object."""
    choose = random.Random(seed)
    objects = {"people": service.object_id("people"), "companies": service.object_id("companies"), "deals": service.object_id("deals")}
    own = ["projects", "tasks"][: choose.randint(0, 2)]
    for slug in own:
        body = {"slug": slug, "singularName": slug[:-1].capitalize(), "pluralName": slug.capitalize()}
        objects[slug] = _post(service, "/objects", body)["id"]
        _attribute(service, objects[slug], "Title", "text")
    targets = list(objects)
    for slug, object_id in objects.items():
        for name, kind, more in _attributes(choose):
            _attribute(service, object_id, name, kind, **more)
        for number in range(choose.randint(1, 2)):
            to = choose.choice([slug, *targets])
            _attribute(service, object_id, f"Link {number}", "reference", isList=number == 1, config={"allowed_object_id": objects[to]})
    ids: dict[str, list[str]] = {slug: [] for slug in objects}
    schema = {slug: _get(service, f"/objects/{object_id}/attributes")["attributes"] for slug, object_id in objects.items()}
    slugs = {object_id: slug for slug, object_id in objects.items()}
    for number in range(records):
        for slug, object_id in objects.items():
            data = {
                attribute["slug"]: value
                for attribute in schema[slug]
                if (value := _value(choose, attribute, f"{seed}-{slug}-{number}")) is not None
            }
            ids[slug].append(_post(service, f"/objects/{object_id}/records", {"data": data})["id"])
    for slug, object_id in objects.items():
        for record_id in ids[slug]:
            links = {}
            for reference in _references(schema[slug]):
                if (value := _link(choose, reference, ids[slugs[reference["config"]["allowed_object_id"]]])) is not None:
                    links[reference["slug"]] = value
            if links:
                path = f"/api/v1/objects/{object_id}/records/{record_id}"
                assert service.client.patch(path, json={"data": links}).is_success
    for number in range(choose.randint(0, 4)):
        slug = choose.choice(targets)
        link = {"objectId": objects[slug], "recordId": choose.choice(ids[slug])}
        person = {"type": "person", "id": choose.choice(ids["people"])}
        about = {"title": f"Call {number} {choose.choice(WORDS)}", "summary": choose.choice(WORDS), "activityDate": "2026-03-01T10:00:00Z"}
        _post(service, "/activities", {**about, "linkedRecords": [link], "participants": [person] if number % 2 else []})
    if _get(service, "/extensions").get("extensions"):
        _post(service, "/definitions", _definitions(choose, seed, ids))
    return ids


def _definitions(choose: random.Random, seed: int, ids: dict[str, list[str]]) -> dict[str, Any]:
    """Return reports, workflows, webhook endpoints and members; some name records."""
    greet: dict[str, Any] = {"type": "updateRecord", "data": {"job_title": "{{ record.data.job_title }}!"}}
    if choose.random() < 0.5:
        greet["recordId"] = choose.choice(ids["people"])
    call = {"type": "callUrl", "url": "https://example.com/hook", "headers": {"Authorization": "secret"}, "body": {"seed": seed}}
    reports = [{"name": f"People by name {seed}", "object": "people", "columns": ["name", "email"], "limit": 7}]
    if choose.random() < 0.5:
        reports.append({"name": f"People by  name {seed}!", "description": choose.choice(WORDS), "object": "deals", "groupBy": "stage"})
    return {
        "members": [
            {"name": choose.choice(NAMES), "email": f"m{seed}-{n}@example.com", "role": choose.choice(["admin", "viewer"])}
            for n in range(2)
        ],
        "reports": reports,
        "workflows": [{"name": f"Greet {choose.choice(NAMES)}", "trigger": "record/created", "object": "people", "actions": [greet, call]}],
        "webhooks": [{"url": "https://example.com/events", "description": choose.choice(WORDS), "eventTypes": ["record.created"]}],
    }


def _attributes(choose: random.Random) -> list[tuple[str, str, dict[str, Any]]]:
    every: list[tuple[str, str, dict[str, Any]]] = [
        ("Note X", "text", {}), ("Mail X", "email", {}), ("Count X", "number", {}), ("Phone X", "phone_number", {}),
        ("Flag X", "checkbox", {}), ("Name X", "name", {}), ("Place X", "address", {}), ("Money X", "currency", {}),
        ("Day X", "date", {}), ("Choice X", "select", {"config": {"options": ["Red", "green", "BLUE ✓"]}}), ("Items X", "list", {}),
        ("Code X", "text", {"isUnique": True}), ("Notes X", "text", {"isList": True}),
    ]  # fmt: skip
    return choose.sample(every, choose.randint(5, len(every)))


def _value(choose: random.Random, attribute: dict[str, Any], unique: str) -> Any:
    kind, slug = attribute["type"], attribute["slug"]
    if kind == "reference" or (choose.random() < 0.3 and not attribute.get("isRequired")):
        return None
    word = choose.choice(WORDS)
    if attribute.get("isUnique"):
        return f"{unique.lower()}@example.com" if kind == "email" else f"{unique} {word}"
    if kind == "select":
        return choose.choice(attribute["config"]["options"])
    values: dict[str, Any] = {
        "text": word if slug != "note_x" else choose.choice([word, "two\nlines", " blanks ", "7", "true"]),
        "email": f"{unique.lower()}@example.com",
        "number": choose.choice([0, -3, 12.5, 10**15, 0.1]),
        "phone_number": f"+4420794609{choose.randint(10, 99)}",
        "checkbox": choose.random() < 0.5,
        "name": choose.choice([word, {"first": word, "last": "Lovelace"}]),
        "address": {"city": word, "country": choose.choice(COUNTRIES)},
        "currency": {"amount": choose.choice([10, 0.5, 1234567.89]), "currency": choose.choice(["EUR", "USD", "JPY"])},
        "date": choose.choice(["2026-02-28", "1999-12-31T23:59:59Z"]),
        "list": [word, "second"],
    }
    return [values[kind], f"{values[kind]} 2"] if attribute.get("isList") and kind == "text" else values[kind]


def _references(attributes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [attribute for attribute in attributes if attribute["type"] == "reference"]


def _link(choose: random.Random, attribute: dict[str, Any], ids: list[str]) -> Any:
    if choose.random() < 0.4:
        return None
    return choose.sample(ids, min(len(ids), choose.randint(1, 3))) if attribute.get("isList") else choose.choice(ids)


def _attribute(service: RunningService, object_id: str, name: str, kind: str, **more: Any) -> None:
    _post(service, f"/objects/{object_id}/attributes", {"name": name, "type": kind, **more})


def _post(service: RunningService, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = service.client.post(f"/api/v1{path}", json=body)
    assert answer.is_success, (path, body, answer.text)
    made: dict[str, Any] = answer.json()
    return made


def _get(service: RunningService, path: str) -> dict[str, Any]:
    found: dict[str, Any] = service.client.get(f"/api/v1{path}").json()
    return found
