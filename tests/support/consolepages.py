"""Every page of the console and the portal, with the data of a small team.

furnished = furnish(service)
furnished.paths["/records/{slug}"]        the addresses of one page of the route table, below /console

`unknown_pages` names pages of the route table that are missing from `paths` and therefore not tested.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from crmctl.service.console.pages import Pages
from crmctl.service.console.routing import areas
from crmctl.service.context import Context, new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.store import keys, logs, members, webhooks, workflows
from crmctl.service.store.logs import LoggedRequest
from crmctl.service.store.tx import Tx, micros_of, to_micros
from crmctl.service.store.webhooks import UNPROVEN, Attempt
from crmctl.service.workflows.run_executor import start_by_hand
from crmctl.values.value_readers import parse_instant
from tests.support.service import RunningService

NO_PAGES = {
    "/records",
    "/records/{slug}/csv",
    "/records/{slug}/import/failed",
    "/health/backup",
    "/records/{slug}/lookup",
    "/search/lookup",
    "/reports/{id:uuid}/runs/{runId:uuid}/csv",
}
"""Routes that redirect or return a file."""

DEFINITIONS = """
reports:
  - name: Pipeline by stage
    description: Open and won deals
    object: deals
    groupBy: stage
    measures: [{function: sum, attribute: amount}, {function: count}]
  - {name: Everybody, object: people, columns: [name, email, company, status, score, birthday], limit: 1000}
  - {name: Employees, object: companies, groupBy: industry, measures: [{function: avg, attribute: employees}, {function: count}]}
workflows:
  - name: Call new people
    description: Call new people within a day
    object: people
    trigger: record/created
    enabled: true
    conditions: [{attributeSlug: status, operator: equals, value: new}]
    actions: [{type: createActivity, title: "Call them"}]
  - name: Tell the warehouse about won deals
    object: deals
    trigger: record/updated
    enabled: true
    actions: [{type: callUrl, url: "https://10.0.0.1/orders"}]
  - name: Monday list
    trigger: schedule
    cron: "0 7 * * 1"
    timezone: Europe/Berlin
    enabled: true
    actions: [{type: createActivity, title: The week}]
  - name: One action of each kind
    object: people
    trigger: record/updated
    enabled: false
    actions:
      - {type: createActivity, title: "Call {{ record.data.email }}", summary: "New people\nget a call.", linkedRecords: []}
      - type: updateRecord
        data: {status: contacted, name: {first: "{{ data.x }}", last: Müller}, score: 12345, notes: null, tags: [a, ב, 株式]}
      - {type: createRecord, object: deals, data: {name: "{{ record.data.job_title }}", amount: {amount: 1200.5, currency: EUR}}}
      - {type: callUrl, url: "https://10.0.0.1/x", headers: {authorization: Bearer abc}, body: {"to": "{{ record.data.email }}"}}
"""
LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2
COMPANIES = [
    ("Northwind Traders", "northwind.example", "retail", 120, 4_500_000, "EUR"),
    ("Blaue Lagune Bäder GmbH & Co. KG", "blaue-lagune.example", "services", 38, 910_000.5, "EUR"),
    ("株式会社山田製作所", "yamada.example", "manufacturing", 2400, 380_000_000, "JPY"),
    ("شركة النخيل للتجارة", "nakheel.example", "agriculture", 75, 1_200_000, "AED"),
    (LONG, f"{'long-' * 11}domain.example", "other", 1, 0.01, "CHF"),
    ("<b>Bold</b> & Sons", "bold.example", None, None, None, None),
    ("北京金风科技股份有限公司", "goldwind.example", "manufacturing", 9800, 46_400_000_000, "CNY"),
    ("מכון ויצמן למדע 🦊🎉", "weizmann.example", "education", 2500, None, None),
]
FIRST = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Linus", "Margaret", "נועה 🎈", "花子", "مريم"]
LAST = ["Lovelace", "Hopper", "Turing", "Dijkstra", "Liskov", "Knuth", "Perlman", "Torvalds", "Hamilton", "כהן", "山田", "الخطيب"]
STATES = ["new", "contacted", "qualified", "customer", "inactive"]
STAGES = ["lead", "qualified", "proposal", "negotiation", "won", "lost"]


@dataclass(frozen=True)
class FurnishedPages:
    """`paths`: addresses of each path in the console's route table, with this data; `portal` and `signed_out`: pages of the portal, and
    pages without a session.
    """

    paths: dict[str, list[str]]
    portal: list[str]
    signed_out: list[str]

    def console(self) -> list[str]:
        return [path for paths in self.paths.values() for path in paths]


def page_tables(service: RunningService) -> tuple[Pages, Pages]:
    """Return the route tables of the console and the portal."""
    return areas(Context(service.settings, service.engine, service.clock, new_id), dict)


def unknown_pages(service: RunningService, furnished: FurnishedPages) -> set[str]:
    """Return pages of the route tables that `furnish` lacks, and pages that the tables lack."""
    console, portal = page_tables(service)
    shown = {route.path for route in console.routes if route.method == "GET"} - NO_PAGES
    in_portal = {route.path for route in portal.routes if route.method == "GET"} - {""}
    without_session = {path.partition("?")[0] for path in furnished.signed_out}
    return (shown ^ (furnished.paths.keys() | without_session)) | (in_portal - shown)


class _Desk:
    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.ids = {crm_object["slug"]: crm_object["id"] for crm_object in service.client.get("/api/v1/objects").json()["objects"]}

    def add(self, slug: str, **data: Any) -> str:
        return str(self.post(f"objects/{self.ids[slug]}/records", {"data": {k: v for k, v in data.items() if v is not None}})["id"])

    def post(self, path: str, body: Any) -> Any:
        answer = self.service.client.post(f"/api/v1/{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        return self.service.client.get(f"/api/v1/{path}").json()

    def link(self, slug: str, record: str) -> dict[str, str]:
        return {"objectId": self.ids[slug], "recordId": record}


def furnish(service: RunningService) -> FurnishedPages:
    """Fill every page with data. Return the addresses of the pages."""
    desk = _Desk(service)
    load_document(service.engine, parse_document(DEFINITIONS), clock=service.clock, ids=new_id)
    people, deal = _records(desk)
    record = f"/records/people/{people[0]}"
    gone = desk.add("people", name={"first": "Gone", "last": LONG[:60]})
    desk.service.client.delete(f"/api/v1/objects/{desk.ids['people']}/records/{gone}")
    activity = _activities(desk, people, deal)
    for name, kind, content in (("offer.pdf", "application/pdf", b"%PDF"), (f"{'long-name-' * 12}.csv", "text/csv", b"a,b\n" * 4000)):
        upload = desk.post("files/upload-url", {"bucket": "attachments", "path": f"2027/{name}"})
        service.client.put(upload["signedUrl"], content=content, headers={"content-type": kind})
    at = micros_of(parse_instant(desk.get(f"objects/{desk.ids['people']}/records/{people[0]}")["updatedAt"]))
    changed = f"/records/people/changed?at={at}"
    waiting = f"{'0' * 32}.csv"
    imports = service.settings.data_dir / "imports"
    imports.mkdir()
    (imports / f"{hashlib.sha256(b'operator').hexdigest()[:16]}-{waiting}").write_text(f"email,{LONG[:60]}\nada@example.com,{LONG}\n")
    paths: dict[str, list[str]] = {
        "": ["", "?notice=saved"],
        "/records/{slug}": [
            "/records/people",
            "/records/companies",
            "/records/deals",
            "/records/people?where=email&op=contains&value=ada",
            "/records/people?where=email&op=equals&value=nobody",
            "/records/people?where=score&op=greaterThan&value=x",
        ],
        "/records/{slug}/new": ["/records/people/new", "/records/companies/new"],
        "/records/{slug}/{recordId:uuid}": [record, f"/records/deals/{deal}"],
        "/records/{slug}/{recordId:uuid}/history": [f"{record}/history"],
        "/records/{slug}/{recordId:uuid}/edit": [f"{record}/edit"],
        "/records/{slug}/{recordId:uuid}/delete": [f"{record}/delete"],
        "/records/{slug}/changed": [changed],
        "/records/{slug}/deleted": ["/records/people/deleted", "/records/deals/deleted"],
        "/records/{slug}/import": ["/records/people/import"],
        "/records/{slug}/import/columns": [f"/records/people/import/columns?file={waiting}"],
        "/search": ["/search", "/search?q=ada", "/search?q=nobody"],
        "/activities": ["/activities"],
        "/activities/new": ["/activities/new"],
        "/activities/{id:uuid}": [f"/activities/{activity}"],
        "/activities/{id:uuid}/delete": [f"/activities/{activity}/delete"],
        "/files": ["/files"],
        "/requests": ["/requests", "/requests?status=500"],
        "/health": ["/health"],
        "/settings": ["/settings"],
        "/audit": ["/audit"],
        "/api": ["/api"],
        "/api/{tag}": ["/api/records", "/api/reports"],
        "/device": ["/device?code=BCDF-GHJK"],
        **{path: [path] for path in ("/account", "/members/sessions")},
        "/{rest:path}": ["/nowhere"],
    }
    endpoints = _endpoints(service)
    members_paths, code = _members(service)
    paths |= _schema(desk) | members_paths | _keys(service) | _automation(desk) | endpoints
    _requests(service)
    in_portal = [path for paths in endpoints.values() for path in paths]
    return FurnishedPages(paths, in_portal, ["/sign-in", f"/password?code={code}", "/password?code=wrong"])


def _records(desk: _Desk) -> tuple[list[str], str]:
    companies = []
    for name, domain, industry, employees, revenue, currency in COMPANIES:
        money = {"amount": revenue, "currency": currency} if currency else None
        place = {"street": "Unter den Linden 1", "city": "Berlin", "postalCode": "10117", "country": "DE"} if currency == "EUR" else None
        found = {"industry": industry, "employees": employees, "annual_revenue": money, "headquarters": place}
        companies.append(desk.add("companies", name=name, domain=domain, **found))
    people = []
    for number in range(60):
        first, last = FIRST[number % 12], LAST[(number + number // 12) % 12]
        people.append(
            desk.add(
                "people",
                name={"first": first, "last": last},
                email=f"{'ada' * 20 if number == 0 else f'colleague.{number}'}@example.com",
                phone="+49 30 901820" if number % 3 == 0 else None,
                company=companies[number % len(companies)],
                job_title=LONG if number == 4 else "Head of Procurement",
                birthday=f"19{50 + number % 50}-03-1{number % 9}",
                tags=["newsletter", "vip", "berlin"][: number % 4] or None,
                subscribed=number % 2 == 0,
                status=STATES[number % 5],
                score=number * 7.5,
                notes="Met at the fair.\nWants a quote by Friday.\n" + "Long story. " * 40 if number == 0 else None,
            )
        )
    for number in range(14):
        money = {"amount": 1250.5 * (number + 1), "currency": "EUR"}
        about = {"stage": STAGES[number % 6], "close_date": f"2027-0{1 + number % 9}-15", "probability": number * 7, "amount": money}
        deal = desk.add("deals", name=f"Renewal {2027 + number}", company=companies[number % 6], contact=people[number % 9], **about)
    path = f"objects/{desk.ids['people']}/records/{people[0]}"
    for change in ({"score": 80}, {"status": "qualified", "job_title": "Analyst"}, {"company": companies[2], "notes": None}):
        assert desk.service.client.patch(f"/api/v1/{path}", json={"data": change}).is_success
    return people, deal


def _activities(desk: _Desk, people: list[str], deal: str) -> str:
    for number in range(8):
        linked = [desk.link("people", people[number % 3]), desk.link("deals", deal)]
        about = {"title": ["Call", "Meeting with the board", "E-mail", LONG][number % 4], "linkedRecords": linked}
        made = desk.post("activities", {**about, "summary": "Wants a quote.", "activityDate": f"2027-01-0{number + 1}T09:30:00Z"})
    return str(made["id"])


def _schema(desk: _Desk) -> dict[str, list[str]]:
    people = desk.ids["people"]
    attributes = {attribute["slug"]: attribute["id"] for attribute in desk.get(f"objects/{people}/attributes")["attributes"]}
    made = desk.post("objects", {"pluralName": "Projects", "singularName": "Project", "description": "Work for customers"})["id"]
    status = f"/objects/{people}/attributes/{attributes['status']}"
    return {
        "/objects": ["/objects"],
        "/objects/new": ["/objects/new"],
        "/objects/{id:uuid}": [f"/objects/{people}"],
        "/objects/{id:uuid}/edit": [f"/objects/{made}/edit"],
        "/objects/{objectId:uuid}/attributes/new": [f"/objects/{made}/attributes/new"],
        "/objects/{id:uuid}/delete": [f"/objects/{made}/delete", f"/objects/{people}/delete"],
        "/objects/{objectId:uuid}/attributes/{id:uuid}": [status, f"/objects/{people}/attributes/{attributes['company']}"],
        "/objects/{objectId:uuid}/attributes/{id:uuid}/delete": [f"{status}/delete"],
    }


def _members(service: RunningService) -> tuple[dict[str, list[str]], str]:
    now = service.clock.now()

    def add(tx: Tx) -> tuple[str, str]:
        for name, role in (("Grace Hopper", "admin"), ("山田 花子", "member"), (LONG[:90], "viewer")):
            email = f"{role}.{'x' * (50 if role == 'viewer' else 1)}@example.com"
            made = members.create_member(tx, name=name, email=email, role=role, ids=new_id, now=now)
        return made["id"], members.make_code(tx, made["id"], now=now)

    member, code = service.engine.write(add)
    shown = {"/members": ["/members"], "/members/new": ["/members/new"], "/members/{id:uuid}": [f"/members/{member}"]}
    return shown | {"/members/{id:uuid}/lock": [f"/members/{member}/lock"]}, code


def _keys(service: RunningService) -> dict[str, list[str]]:
    now = service.clock.now()

    def add(tx: Tx) -> str:
        made = [
            keys.create_key(tx, name=name, scopes=scopes, expires_at=end, ids=new_id, now=now)[0].id
            for name, scopes, end in (
                ("Nightly import", frozenset({"records:read", "records:write", "objects:read"}), now + 30 * 86400),
                (LONG[:80], None, None),
                ("Old warehouse", frozenset({"records:read"}), None),
            )
        ]
        keys.revoke_key(tx, made[2], now=now)
        return made[0]

    key = f"/keys/{service.engine.write(add)}"
    asking = {f"/keys/{{id:uuid}}/{name}": [f"{key}/{name}"] for name in ("rotate", "revoke")}
    return {"/keys": ["/keys"], "/keys/new": ["/keys/new"]} | asking


def _automation(desk: _Desk) -> dict[str, list[str]]:
    found = {report["name"]: report["id"] for report in desk.get("reports")["reports"]}
    runs = {name: desk.post(f"reports/{report}/run", {})["run"]["id"] for name, report in found.items() for _ in range(2)}
    report = found["Pipeline by stage"]
    known = {workflow["name"]: workflow["id"] for workflow in desk.get("workflows")["workflows"]}
    workflows = [known[name] for name in ("Call new people", "Tell the warehouse about won deals", "Monday list")]
    every_kind = f"/workflows/{known['One action of each kind']}"
    run = [add_ended_run(desk.service, workflows[0], error) for error in (None, "the record is gone", None)][1]
    add_ended_run(desk.service, workflows[1], "https://10.0.0.1/orders: not a public address")
    one = f"/workflows/{workflows[0]}"
    return {
        "/reports": ["/reports"],
        "/reports/new": ["/reports/new", "/reports/new?as=yaml"],
        "/reports/{id:uuid}": [f"/reports/{report}"],
        "/reports/{id:uuid}/edit": [f"/reports/{report}/edit", f"/reports/{report}/edit?as=yaml"],
        "/reports/{id:uuid}/delete": [f"/reports/{report}/delete"],
        "/reports/{id:uuid}/runs/{runId:uuid}": [f"/reports/{found[name]}/runs/{runs[name]}" for name in found],
        "/workflows": ["/workflows"],
        "/workflows/new": ["/workflows/new"],
        "/workflows/{id:uuid}": [every_kind, one, f"/workflows/{workflows[2]}"],
        "/workflows/{id:uuid}/edit": [f"{every_kind}/edit", f"{one}/edit", f"{one}/edit?as=yaml"],
        "/workflows/{id:uuid}/delete": [f"{one}/delete"],
        "/workflows/{id:uuid}/runs/{runId:uuid}": [f"{one}/runs/{run}"],
    }


def add_ended_run(service: RunningService, workflow: str, error: str | None) -> str:
    """Add a run that ended before any job saw it. Return its id."""
    stamp: Any = {"ids": new_id, "now": service.clock.now()}

    def run(tx: Tx) -> str:
        start_by_hand(tx, workflow, {"email": "ada@example.com"}, **stamp)
        for claimed in workflows.claim_runs(tx, 9, now=stamp["now"]):
            if error:
                workflows.finish_run(tx, claimed, workflows.FAILED, error, **stamp)
            else:
                workflows.advance_run(tx, claimed, {"activityId": new_id()}, **stamp)
        return str(workflows.list_runs(tx, workflow, 1)[0]["id"])

    return service.engine.write(run)


def _endpoints(service: RunningService) -> dict[str, list[str]]:
    """Add one endpoint of each health; their deliveries are disabled or tests, so that no job tries them."""
    now, stamp = service.clock.now(), {"ids": new_id, "now": service.clock.now()}
    columns = ("tried_at", "failing_since", "succeeded_at", "problem", "disabled_at", "enabled")
    sql = f"UPDATE webhook_endpoint SET {', '.join(f'{column} = ?' for column in columns)} WHERE id = ?"

    def at(ago: float | None) -> int | None:
        return None if ago is None else to_micros(now - ago)

    def add(tx: Tx) -> tuple[str, list[str]]:
        for url, failing, succeeded, problem, disabled in (
            ("https://hooks.example.com/crm", None, 40, None, None),
            ("https://10.0.0.1/dead", 5000, None, "connection refused", None),
            (f"https://10.0.0.1/late/{'x' * 60}", 90_000, 95_000, "answered with status 503", None),
            ("https://10.0.0.1/gone", 500_000, 900_000, "answered with status 410", 9000),
        ):
            one = webhooks.create_endpoint(tx, url=url, description="Orders" if problem else "", **stamp)["id"]
            for status in [503, 200, 200] if problem else [200] * 3:
                _attempted(tx, one, status, stamp)
            tx.execute(sql, (at(30), at(failing), at(succeeded), problem, at(disabled), int(disabled is None), one))
        long = f"https://hooks.example.com/services/{'T0123456789' * 9}"
        one = webhooks.create_endpoint(tx, url=long, description="x " * 60, event_types=["record.created"], **stamp)["id"]
        webhooks.update_endpoint(tx, one, {"enabled": False}, now=now)
        return one, [_attempted(tx, one, status, stamp) for status in (None, 503, 200)]

    endpoint, (refused, failed, _) = service.engine.write(add)
    one = f"/webhooks/{endpoint}"
    return {
        "/webhooks": ["/webhooks"],
        "/webhooks/new": ["/webhooks/new"],
        "/webhooks/{id:uuid}": [one, f"{one}?state=pending", f"{one}?state=succeeded"],
        "/webhooks/{id:uuid}/edit": [f"{one}/edit"],
        "/webhooks/{id:uuid}/rotate": [f"{one}/rotate"],
        "/webhooks/{id:uuid}/delete": [f"{one}/delete"],
        "/webhooks/{id:uuid}/replay": [f"{one}/replay"],
        "/webhooks/{id:uuid}/deliveries/{deliveryId:uuid}": [f"{one}/deliveries/{refused}", f"{one}/deliveries/{failed}"],
    }


def _attempted(tx: Tx, endpoint: str, status: int | None, stamp: Any) -> str:
    """Add a delivery with one attempt that got this status, or no answer. Return its id."""
    delivery, now = webhooks.send_test(tx, endpoint, **stamp), stamp["now"]
    error = None if status else "connection refused"
    sent = {"content-type": "application/json", "webhook-signature": f"v1,{'x' * 60}"}
    body = json.dumps({"error": "too busy", "retry": True}) if status else ""
    answered = {"server": "nginx"} if status else {}
    for due in webhooks.claim(tx, UNPROVEN, 9, now=now):
        webhooks.settle(tx, [Attempt(due, now, 0.25, status, error, sent, answered, body)], new_id)
    tx.execute("UPDATE webhook_endpoint SET failing_since = NULL, succeeded_at = NULL WHERE id = ?", (endpoint,))
    return delivery


def _requests(service: RunningService) -> None:
    at = to_micros(service.clock.now())
    key = service.engine.read(keys.list_keys)[0].id
    path = "/api/v1/objects/{objectId}/records"
    logged = [
        LoggedRequest(
            at - i * 900_000,
            f"req-{i}",
            key if i % 3 else None,
            ("GET", "POST")[i % 2],
            path,
            (200, 201, 404, 500)[i % 4],
            1800 * i,
            "203.0.113.7",
        )
        for i in range(120)
    ]
    service.engine.write(lambda tx: logs.append(tx, logged))
