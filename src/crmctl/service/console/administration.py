"""Reading and changing members, keys, sessions and logs, and the pages of overview and health."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from crmctl.errors import CrmctlError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import counted, size_text
from crmctl.models.resources import AttributeType
from crmctl.models.scopes import SCOPES
from crmctl.service.backup.backup import make_backup
from crmctl.service.console.cells import ListCell, colours_of, value_text
from crmctl.service.console.noun_pages import BoxChoice, NounQuery
from crmctl.service.console.pages import MOST_OBJECTS
from crmctl.service.console.visits import (
    ConsolePage,
    Download,
    Outcome,
    Redirect,
    Visit,
    counted_up_to,
    make_password_link,
    shortened,
)
from crmctl.service.context import DAY
from crmctl.service.faults import BadRequest, Forbidden, NotFound, Unavailable
from crmctl.service.files.storage import read_pieces
from crmctl.service.store import change_log, keys, logs, members, objects, preferences, records, reports, webhooks, workflows
from crmctl.service.store.keys import ApiKey, parse_expiry
from crmctl.service.store.members import MEANINGS, MemberRole, role_of
from crmctl.service.store.preferences import option_colours
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Tx, to_micros, to_wire
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

SUBJECTS = ("object", "attribute", "member", "key", "endpoint", "report", "workflow", "settings")
MOST_TROUBLES = 20
"""Endpoints, reports and workflows named on the overview; the lists have the others."""


def list_members(tx: Tx, visit: Visit, _asked: NounQuery) -> list[Json]:
    access = members.access_of_members(tx, now=visit.now())
    return [member | {"access": access.get(member["id"], "")} for member in members.list_members(tx)]


def changeable_member(tx: Tx, visit: Visit) -> Json:
    """Return the member of the path. Raises Forbidden if only an owner may change it."""
    member = members.get_member(tx, visit.id("id"))
    if role_of(member["role"]) is MemberRole.OWNER and not visit.may(MemberRole.OWNER):
        raise Forbidden("only an owner changes an owner")
    access = members.access_of_members(tx, now=visit.now()).get(member["id"], "")
    return member | {"access": access, "role": role_of(member["role"]).label}


def role_options(visit: Visit) -> dict[str, tuple[str, str]]:
    return {role.label: (role.label.capitalize(), meaning) for role, meaning in MEANINGS.items() if visit.may(role)}


def invite(tx: Tx, visit: Visit) -> Outcome:
    role, email = members.role_named(visit.text("role")), visit.text("email")
    if not visit.may(role):
        raise Forbidden("only an owner makes an owner")
    member = members.create_member(tx, name=visit.text("name"), email=email, role=role.label, **visit.stamp())
    return password_link(tx, visit, member)


def change_member(tx: Tx, visit: Visit, member: Json) -> Outcome:
    role = members.role_named(visit.text("role"))
    members.check_change(tx, member, visit.session.role, role)
    members.update_member(tx, member["id"], name=visit.text("name"), role=role.label, image=member["user"]["image"])
    return Redirect("/members", "saved")


def password_link(tx: Tx, visit: Visit, member: Json) -> Outcome:
    link = make_password_link(tx, visit.context.settings.address, member["id"], now=visit.now())
    return ConsolePage("member_link.html", {"member": member, "link": link.url})


def lock(tx: Tx, _visit: Visit, member: Json) -> None:
    members.drop_password(tx, member["id"])
    members.end_sessions_of(tx, member["id"])


_RESOURCES = dict.fromkeys(scope.partition(":")[0] for scope in SCOPES)
ACCESS = BoxChoice(
    everything="full",
    only="scopes",
    box="scope",
    one="scope",
    all="full access",
    groups={name: [pair for pair in SCOPES.items() if pair[0].startswith(f"{name}:")] for name in _RESOURCES},
    labels=(
        ("Full access", "Every scope."),
        ("Only these scopes", "Reading needs the read scope of a resource, changing it the write scope."),
    ),
)


def list_keys(tx: Tx, visit: Visit, _asked: NounQuery) -> list[Json]:
    return [_key(key, visit.now()) for key in reversed(keys.list_keys(tx))]


def get_key(tx: Tx, visit: Visit) -> Json:
    return _key(keys.get_key(tx, visit.id("id")), visit.now())


def _key(key: ApiKey, now: float) -> Json:
    state = "revoked" if key.revoked_at is not None else "expired" if key.is_expired(now) else "active"
    return key.wire() | {"state": state}


def create_key(tx: Tx, visit: Visit) -> Outcome:
    key_id, now, expires = visit.form_id(), visit.now(), visit.text("expires")
    if any(key.id == key_id for key in keys.list_keys(tx)):
        return Redirect("/keys", "created-before")
    scopes = ACCESS.read(visit, "access")
    key, value = keys.create_key(
        tx,
        name=visit.text("name"),
        scopes=None if scopes is None else frozenset(scopes),
        expires_at=parse_expiry(expires, now) if expires else None,
        created_by=visit.session.member_id,
        ids=lambda: key_id,
        now=now,
    )
    values = {"key": _key(key, now), "value": value, "address": visit.context.settings.address}
    return ConsolePage("key_created.html", values, HTTPStatus.CREATED)


ROTATION_HOURS = {"24": ("24 hours", ""), "1": ("1 hour", ""), "168": ("7 days", ""), "720": ("30 days", "")}


def rotate_key(tx: Tx, visit: Visit, key: Json) -> Outcome:
    hours, now = visit.text("hours") or "24", visit.now()
    if hours not in ROTATION_HOURS:
        raise BadRequest("choose how long the old key works", {"field": "hours"})
    fresh, value = keys.rotate_key(tx, key["id"], until=now + int(hours) * 3600, created_by=visit.session.member_id, **visit.stamp())
    values = {"key": _key(fresh, now), "value": value, "address": visit.context.settings.address}
    return ConsolePage("key_created.html", values, HTTPStatus.CREATED)


def revoke_key(tx: Tx, visit: Visit, key: Json) -> None:
    keys.revoke_key(tx, key["id"], now=visit.now())


def sessions(tx: Tx, visit: Visit, member_id: str | None) -> list[Json]:
    """Return the open sessions of one member, or of all. Each says which page its button leads back to."""
    sessions_shown = members.list_sessions(tx, member_id, now=visit.now())
    origin = "own" if member_id else "all"
    return [session | {"isOwn": session["id"] == visit.session.id, "from": origin} for session in sessions_shown]


def end_session(tx: Tx, visit: Visit, session: Json) -> Outcome:
    """End the visitor's own session; an administrator ends any."""
    of_all = visit.may_administer
    if not of_all and visit.session.member_id is None:
        raise Forbidden("this session belongs to no member")
    if not members.end_session(tx, session["id"], None if of_all else visit.session.member_id):
        raise NotFound("this session has already ended")
    return Redirect("/members/sessions" if of_all and visit.text("from") == "all" else "/account", "session-ended")


def change_settings(tx: Tx, visit: Visit, stored: Json) -> Outcome:
    preferences.change_settings(tx, {name: visit.text(name) for name in stored}, now=visit.now())
    return Redirect("/settings", "saved")


def list_requests(tx: Tx, _visit: Visit, asked: NounQuery) -> list[Json]:
    key, request_id, status = asked.filters["key"], asked.filters["id"], asked.filters["status"]
    least = int(status) if status in ("400", "500") else None
    return logs.list_requests(tx, asked.limit, asked.offset, key_id=key or None, request_id=request_id or None, status=least)


def list_audit(tx: Tx, _visit: Visit, asked: NounQuery) -> list[Json]:
    subject = asked.filters["about"]
    return logs.list_entries(tx, asked.limit, asked.offset, action=subject if subject in SUBJECTS else None)


def subject_cell(entry: Json) -> ListCell:
    about = entry["about"]
    name = about.get("name") or about.get("slug") or about.get("url") or entry["id"]
    return ListCell(str(name), more=[jsontext.dumps(about)] if about else ())


def changes_cell(entry: Json) -> ListCell:
    """Return the old and new values of an update, one attribute on a line."""
    changes = entry["about"].get("changes", {}).items()
    lines = [f"{name}: {_change_text(old)} → {_change_text(new)}" for name, (old, new) in changes]
    return ListCell("\n".join(lines), "lines")


def _change_text(value: Any) -> str:
    return shortened(value_text("", value), 200) or "nothing"


def report_result(report: Json) -> ListCell:
    run = report["last"]
    if run is None:
        return ListCell()
    return ListCell(
        counted(run["resultCount"], "result"),
        path=f"/reports/{report['id']}/runs/{run['id']}",
        badge=run["status"],
        note=run.get("error") or "",
    )


def last_run(workflow: Json) -> ListCell:
    run = workflow["outcomes"]["last"]
    return ListCell(run["createdAt"], "moment", badge=run["status"], note=run["error"] or "") if run else ListCell()


def success(workflow: Json) -> ListCell:
    outcomes = workflow["outcomes"]
    text = f"{outcomes['completed']} of {outcomes['ended']}" if outcomes["ended"] else ""
    return ListCell(text, is_bad=bool(outcomes["failed"]))


def overview(tx: Tx, visit: Visit) -> ConsolePage:
    week_ago, troubles = to_wire(to_micros(visit.now() - 7 * DAY)), _troubles(tx, visit)
    values = {
        "organisation": members.get_organisation(tx),
        "address": visit.context.settings.address,
        "troubles": troubles[:MOST_TROUBLES],
        "more_troubles": max(0, len(troubles) - MOST_TROUBLES),
        "more_objects": max(0, len(visit.objects) - MOST_OBJECTS),
        "totals": [
            (
                crm_object,
                records.count_records(tx, crm_object["id"]),
                _count(tx, crm_object, "created_at", Operator.GREATER_THAN_OR_EQUAL, week_ago),
            )
            for crm_object in visit.objects[:MOST_OBJECTS]
        ],
        "stages": [stage for crm_object in visit.objects if crm_object["slug"] == "deals" for stage in _stages(tx, crm_object)],
    }
    return ConsolePage("overview.html", values)


def _count(tx: Tx, crm_object: Mapping[str, Any], slug: str, operator: Operator, value: str) -> str:
    """Return how many records meet the condition, as far as they were counted."""
    part = records.Search(tx, crm_object["id"], [Condition(slug, operator, value)]).part(Paging(limit=0))
    return counted_up_to(part.total + part.is_more, part.total)


def _stages(tx: Tx, crm_object: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return each stage of deals with its colour and number of deals."""
    attributes = objects.list_attributes(tx, crm_object["id"])
    stage = next((attribute for attribute in attributes if (attribute["slug"], attribute["type"]) == ("stage", AttributeType.SELECT)), None)
    if stage is None:
        return []
    colours = colours_of(stage["config"]["options"], option_colours(tx).get(stage["id"], {}))
    return [(option, colour, _count(tx, crm_object, "stage", Operator.EQUALS, option)) for option, colour in colours.items()]


def _troubles(tx: Tx, visit: Visit) -> list[Json]:
    """Return what needs attention: endpoints that fail or were given up, and reports and workflows whose last run failed."""
    troubles = [
        {
            "path": f"/webhooks/{endpoint['id']}",
            "name": endpoint["url"],
            "what": "Endpoint, " + ("disabled by the service after five days" if endpoint["disabledAt"] else "its last attempt failed"),
            "at": endpoint["disabledAt"] or endpoint["failingSince"],
            "reason": endpoint["problem"],
        }
        for endpoint in (webhooks.list_endpoints(tx) if visit.may_administer else ())
        if endpoint["disabledAt"] or (endpoint["enabled"] and endpoint["health"] == "failing")
    ]
    runs = reports.last_runs(tx)
    last = [
        ("workflow", workflow, workflows.last_ended(tx, workflow["id"]), "createdAt")
        for workflow in workflows.list_workflows(tx)
        if workflow["enabled"]
    ]
    last += [("report", report, runs.get(report["id"]), "startedAt") for report in reports.list_reports(tx)]
    return troubles + [
        {
            "path": f"/{kind}s/{thing['id']}",
            "name": thing["name"],
            "what": f"{kind.capitalize()}, its last run failed",
            "at": run[at],
            "reason": run.get("error") or "",
        }
        for kind, thing, run, at in last
        if run and run["status"] == reports.FAILED
    ]


BACKUP_FILE = "console.backup"
MOST_SLOW = 10


def show_health(tx: Tx, visit: Visit) -> ConsolePage:
    counts = [webhooks.count_deliveries(tx, endpoint["id"]) for endpoint in webhooks.list_endpoints(tx)]
    backup = _backup_file(visit)
    status = backup.stat() if backup.is_file() else None
    values = {
        "facts": {
            "Database": size_text(int(visit.context.engine.figures()["database_bytes"])),
            "Events waiting": counted_up_to(*change_log.count_waiting(tx)),
            "Deliveries pending": f"{sum(count[webhooks.PENDING] for count in counts):,}",
            "Deliveries failed": f"{sum(count[webhooks.FAILED] for count in counts):,}",
        },
        "slow": logs.slowest(tx, visit.now() - DAY, MOST_SLOW),
        "backup": {"at": to_wire(to_micros(status.st_mtime)), "size": status.st_size} if status else None,
    }
    return ConsolePage("health.html", values)


def back_up(visit: Visit) -> Redirect:
    context = visit.context
    try:
        backup = make_backup(context.engine, context.settings, _backup_file(visit), context.clock)
    except CrmctlError as error:
        raise Unavailable(f"no backup was made: {error.message}") from error
    context.engine.write(lambda tx: logs.note(tx, "backup.made", BACKUP_FILE, backup, now=visit.now()), by=visit.actor)
    return Redirect("/health", "backed-up")


def download_backup(_tx: Tx, visit: Visit) -> Download:
    backup = _backup_file(visit)
    if not backup.is_file():
        raise NotFound("no backup was made here yet")
    at = to_wire(to_micros(backup.stat().st_mtime))[:16].replace(":", "-")
    return Download(read_pieces(backup.open("rb")), "application/octet-stream", f"crmctl-{at}.backup")


def _backup_file(visit: Visit) -> Path:
    return visit.context.settings.data_dir / BACKUP_FILE
