"""Every noun of the console: columns, form fields, filters, actions, role, paths and texts. A new noun is one row of NOUNS."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.models.numbers import counted
from crmctl.models.resources import EVENT_TYPES
from crmctl.models.scopes import SCOPES
from crmctl.service.console import activities, administration, objects, webhooks
from crmctl.service.console import reports as report_pages
from crmctl.service.console import workflows as workflow_pages
from crmctl.service.console.cells import ListCell
from crmctl.service.console.noun_pages import (
    ConsoleNoun,
    NounAction,
    NounColumn,
    NounField,
    NounFilter,
    NounForm,
    actor_name,
    deletion_action,
    switch_action,
)
from crmctl.service.console.pages import LARGE_FORM
from crmctl.service.console.visits import browser_name, counted_up_to, creator_name, day, trigger_name
from crmctl.service.context import DAY
from crmctl.service.definitions.definitions_file import report_entry, workflow_entry
from crmctl.service.store import activities as activity_store
from crmctl.service.store import keys, preferences, reports, workflows
from crmctl.service.store import objects as object_store
from crmctl.service.store import webhooks as endpoints
from crmctl.service.store.members import MemberRole
from crmctl.service.store.objects import options_of

NAME = NounField("name", "Name", is_required=True)
DESCRIPTION = NounField("description", "Description", longest=10_000)
SLUG = NounField(
    "slug",
    "Slug",
    "mono",
    longest=64,
    on="new",
    hint="The name that requests use; it never changes. If empty, it is derived from the name.",
)


def _name(thing: Json) -> ListCell:
    return ListCell(thing["name"], note=thing.get("description") or "")


def _active(thing: Json) -> str:
    return "active" if thing["isActive"] else "inactive"


def _enabled(thing: Json) -> str:
    return "enabled" if thing["enabled"] else "disabled"


def _definition_form(singular: str, pages: ModuleType, stored: Callable[[Json], Json], **more: Any) -> NounForm:
    return NounForm(
        fields=(NAME, DESCRIPTION),
        stored=stored,
        create=pages.save,
        change=pages.save,
        new_title=f"New {singular}",
        new_button="Save",
        edit_path="/edit",
        template=f"{singular}_form.html",
        values=pages.form_values,
        subject=lambda thing: str(thing["name"]),
        limit=LARGE_FORM,
        **more,
    )


ACTIVITIES = ConsoleNoun(
    path="/activities",
    plural="Activities",
    singular="activity",
    group="Work",
    columns=(
        NounColumn("Title", lambda activity: ListCell(activity["title"], note=activity["summary"][:200])),
        NounColumn("Linked to", lambda activity: ListCell("", links=activity["links"])),
        NounColumn("By", lambda activity: creator_name(activity["createdBy"])),
        NounColumn("Time", "activityDate", "moment"),
    ),
    list=activities.list_page,
    per_page=25,
    empty="No activities yet. An activity records a call, a meeting or a note about people, companies or deals.",
    get=lambda tx, visit: activity_store.get_activity(tx, visit.id("id")),
    name=lambda activity: str(activity["title"]),
    form=NounForm(
        fields=(
            NounField("title", "Title", is_required=True),
            NounField("summary", "Summary", "textarea", longest=10_000),
            NounField("date", "Time", "datetime-local", note="UTC"),
            NounField(
                "object",
                "Object",
                "select",
                on="new",
                options=lambda visit: {crm_object["slug"]: (crm_object["pluralName"], "") for crm_object in visit.objects},
            ),
            NounField("record", "Record", on="new", hint="The name of the record this is about."),
        ),
        stored=lambda activity: {
            "title": activity["title"],
            "summary": activity["summary"],
            "date": activity["activityDate"][:16],
        },
        create=activities.create,
        change=activities.change,
        new_title="New activity",
        new_button="Add",
        needs=MemberRole.MEMBER,
        is_readable=True,
        facts=activities.facts,
    ),
    actions=(deletion_action("activity", "It disappears from every linked record.", activities.delete, needs=MemberRole.MEMBER),),
)

REPORTS = ConsoleNoun(
    path="/reports",
    plural="Reports",
    singular="report",
    group="Automation",
    columns=(
        NounColumn("Name", _name),
        NounColumn("Creator", lambda report: creator_name(report["creator"])),
        NounColumn("Last run", "lastRunAt", "moment"),
        NounColumn("Result", administration.report_result),
    ),
    list=lambda tx, _visit, _asked: [
        report | {"last": last}
        for runs in [reports.last_runs(tx)]
        for report in reports.list_reports(tx)
        for last in [runs.get(report["id"])]
    ],
    empty="No reports yet. A report asks a question about records and keeps the results of its runs.",
    get=lambda tx, visit: reports.get_report(tx, visit.id("id")),
    show=report_pages.page_values,
    form=_definition_form("report", report_pages, report_entry),
    actions=(
        deletion_action(
            "report",
            lambda tx, report: f"This also deletes {counted(reports.count_runs(tx, report['id']), 'stored run')}. The records stay.",
            lambda tx, _visit, report: reports.delete_report(tx, report["id"]),
        ),
    ),
)

WORKFLOWS = ConsoleNoun(
    path="/workflows",
    plural="Workflows",
    singular="workflow",
    group="Automation",
    columns=(
        NounColumn("Name", _name),
        NounColumn("State", _enabled, "badge"),
        NounColumn("Trigger", lambda workflow: trigger_name(workflow["trigger"])),
        NounColumn("Object", lambda workflow: (workflow["object"]["pluralName"] or "deleted") if workflow["object"] else ""),
        NounColumn("Last run", administration.last_run),
        NounColumn("Succeeded", administration.success, kind="number"),
    ),
    list=lambda tx, _visit, _asked: [
        workflow | {"outcomes": workflows.recent_outcomes(tx, workflow["id"])} for workflow in workflows.list_workflows(tx)
    ],
    empty="No workflows yet. A workflow acts when a record or an activity changes, on a schedule, or when you run it.",
    get=lambda tx, visit: workflows.get_workflow(tx, visit.id("id")),
    state=_enabled,
    show=workflow_pages.page_values,
    form=_definition_form("workflow", workflow_pages, workflow_entry, pressed=workflow_pages.pressed),
    actions=(
        switch_action("enabled", workflow_pages.switch_on, "enabled"),
        deletion_action(
            "workflow",
            "This also deletes its runs and stops a run in progress. To pause it, disable it instead.",
            lambda tx, _visit, workflow: workflows.delete_workflow(tx, workflow["id"]),
        ),
        NounAction("run", label="Run", act=workflow_pages.start_run, needs=MemberRole.MEMBER, is_offered_above=False),
    ),
)

ENDPOINTS = ConsoleNoun(
    path="/webhooks",
    plural="Webhooks",
    singular="endpoint",
    group="Automation",
    needs=MemberRole.ADMIN,
    columns=(
        NounColumn("Address", lambda endpoint: ListCell(endpoint["url"], "code", note=endpoint["description"])),
        NounColumn("State", webhooks.state_cell),
        NounColumn("Events", lambda to: "all" if to["eventTypes"] is None else f"{len(to['eventTypes'])} of {len(EVENT_TYPES)}"),
        NounColumn("Recent attempts", webhooks.attempts_cell),
        NounColumn("Pending", lambda endpoint: counted_up_to(endpoint["counts"]["pending"], 10_000), kind="number"),
        NounColumn(
            "Failed",
            lambda endpoint: ListCell(counted_up_to(endpoint["counts"]["failed"], 10_000), is_bad=bool(endpoint["counts"]["failed"])),
            kind="number",
        ),
    ),
    list=webhooks.list_page,
    empty="No endpoints yet. Add the address of a program that should receive events.",
    get=lambda tx, visit: endpoints.get_endpoint(tx, visit.id("id")),
    name=lambda endpoint: str(endpoint["url"]),
    state=_enabled,
    show=webhooks.page_values,
    form=NounForm(
        fields=(
            NounField(
                "url",
                "Address",
                "url",
                hint="Events are sent here as a signed POST. Use https. Only public addresses are allowed.",
                is_required=True,
                longest=2000,
                placeholder="https://example.com/hooks",
            ),
            DESCRIPTION,
            NounField("types", "Events", "boxes", boxes=webhooks.TYPES),
        ),
        stored=lambda endpoint: {"url": endpoint["url"], "description": endpoint["description"], "types": endpoint["eventTypes"]},
        create=webhooks.create,
        change=webhooks.change,
        new_title="Add an endpoint",
        new_button="Add the endpoint",
        edit_path="/edit",
    ),
    actions=(
        NounAction("test", label="Send a test", act=webhooks.send_test, is_primary=True),
        switch_action("enabled", webhooks.switch, "enabled"),
        deletion_action(
            "endpoint",
            "This also deletes its delivery history and cancels pending deliveries. To pause an endpoint, disable it instead.",
            lambda tx, _visit, endpoint: endpoints.delete_endpoint(tx, endpoint["id"]),
        ),
        NounAction("secret", label="Show the secret", act=webhooks.show_secret, anchor="secret", is_offered_above=False),
        NounAction(
            "rotate",
            label="Rotate…",
            title=lambda endpoint: f"Rotate the signing secret of {endpoint['url']}",
            text="A new secret signs from now on. The old one also signs for another day, so that you can update the receiver.",
            button="Rotate the secret",
            # Only the button shows the new secret: if this answer did, reloading it would rotate again.
            act=lambda tx, visit, endpoint: endpoints.rotate_secret(tx, endpoint["id"], now=visit.now()),
            notice="rotated",
            is_offered_above=False,
        ),
    ),
)

ATTRIBUTES = ConsoleNoun(
    base="/objects/{objectId:uuid}",
    path="/attributes",
    plural="Attributes",
    singular="attribute",
    columns=(
        NounColumn("Attribute", "name"),
        NounColumn("Slug", "slug", "code"),
        NounColumn("Type", "kind"),
        NounColumn("State", _active, "badge"),
    ),
    list=lambda tx, visit, _asked: objects.described_attributes(tx, str(visit.path.get("objectId") or visit.path["id"])),
    empty="No attributes yet.",
    get=lambda tx, visit: object_store.get_attribute(tx, visit.id("objectId"), visit.id("id")),
    state=_active,
    trail=objects.trail,
    form=NounForm(
        fields=(
            NounField("name", "Name", is_required=True, hint="The slug, type and rules never change."),
            NounField(
                "type", "Type", "select", on="new", options=lambda _visit: {kind: (text, "") for kind, text in objects.TYPES.items()}
            ),
            NounField("options", "Options", "textarea", note="for a list of options", hint="One per line.", longest=20_000, on="new"),
            NounField("target", "Linked records", "select", note="for a link to a record", on="new", options=objects.target_options),
            NounField("flag", "Rules", "ticks", on="new", options=lambda _visit: objects.RULES),
            SLUG,
        ),
        stored=lambda attribute: {"name": attribute["name"], "options": options_of(attribute)},
        create=objects.create_attribute,
        change=objects.change_attribute,
        template="attribute_form.html",
        values=objects.option_values,
        new_title="New attribute",
        new_button="Create the attribute",
        is_readable=True,
        facts=objects.attribute_facts,
    ),
    actions=(
        switch_action("active", objects.switch_attribute, "attribute-active", goes_to_list=True),
        deletion_action(
            "attribute",
            objects.attribute_deletion_text,
            lambda tx, visit, attribute: object_store.delete_attribute(tx, visit.id("objectId"), attribute["id"]),
            is_slow=True,
        ),
    ),
)

OBJECTS = ConsoleNoun(
    path="/objects",
    plural="Objects",
    singular="object",
    group="Administration",
    columns=(
        NounColumn("Name", lambda crm_object: ListCell(crm_object["pluralName"], note=crm_object["description"] or "")),
        NounColumn("Slug", "slug", "code"),
        NounColumn("Type", "type"),
        NounColumn("State", _active, "badge"),
        NounColumn(
            "Records", lambda crm_object: ListCell(f"{crm_object['total']:,}", path=f"/records/{crm_object['slug']}"), kind="number"
        ),
    ),
    list=objects.list_page,
    empty="No objects yet.",
    get=lambda tx, visit: object_store.get_object(tx, visit.id("id")),
    state=_active,
    show=objects.page_values,
    children=ATTRIBUTES,
    name=lambda crm_object: str(crm_object["pluralName"]),
    form=NounForm(
        fields=(
            NounField("plural", "Plural name", is_required=True, placeholder="Projects"),
            NounField("singular", "Singular name", placeholder="Project", on="new"),
            SLUG,
            DESCRIPTION,
        ),
        stored=lambda crm_object: {"plural": crm_object["pluralName"], "description": crm_object["description"]},
        create=objects.create,
        change=objects.change,
        new_title="New object",
        new_button="Create the object",
        edit_path="/edit",
    ),
    actions=(
        switch_action("active", objects.switch, "object-active", is_offered=lambda _visit, crm_object: not objects.is_standard(crm_object)),
        deletion_action(
            "object",
            objects.deletion_text,
            lambda tx, _visit, crm_object: object_store.delete_object(tx, crm_object["id"]),
            is_offered=lambda _visit, crm_object: not objects.is_standard(crm_object),
        ),
    ),
)

MEMBERS = ConsoleNoun(
    path="/members",
    plural="Members",
    singular="member",
    group="Administration",
    columns=(
        NounColumn("Name", lambda member: ListCell(creator_name(member["user"]), note=member["user"]["email"])),
        NounColumn("Role", "role"),
        NounColumn("Sign-in", lambda member: ListCell(badge=member["access"]) if member["access"] else ListCell("no access")),
        NounColumn("Since", "createdAt", "time"),
    ),
    list=administration.list_members,
    empty="No members yet.",
    get=administration.changeable_member,
    name=lambda member: creator_name(member["user"]),
    may_open=lambda visit, member: visit.may_administer and (member["role"] != "owner" or visit.may(MemberRole.OWNER)),
    state=lambda member: member["access"],
    links=(("Sessions", "/members/sessions", MemberRole.ADMIN),),
    form=NounForm(
        fields=(
            NAME,
            NounField("email", "Email address", "email", is_required=True, longest=320, on="new"),
            NounField("role", "Role", "radio", is_required=True, options=administration.role_options),
        ),
        stored=lambda member: {"name": member["user"]["name"], "role": member["role"]},
        facts=lambda _tx, _visit, member: [("Email address", ListCell(member["user"]["email"]))],
        create=administration.invite,
        change=administration.change_member,
        new_title="Invite a member",
        new_button="Invite",
    ),
    actions=(
        NounAction("link", label="Create a password link", act=administration.password_link),
        NounAction(
            "lock",
            label="Remove access…",
            title=lambda member: f"Remove access for {member['user']['name']} ({member['user']['email']})",
            text=(
                "This deletes the password, invalidates open links and ends every session. The member and everything they created stay. "
                "So do API keys that they made or approved for a device: revoke those on the page API keys. A new link restores access."
            ),
            button="Remove access",
            act=administration.lock,
            notice="locked",
            goes_to_list=True,
            is_offered=lambda _visit, member: bool(member["access"]),
        ),
    ),
)

KEYS = ConsoleNoun(
    path="/keys",
    plural="API keys",
    singular="API key",
    group="Administration",
    needs=MemberRole.ADMIN,
    columns=(
        NounColumn("Name", "name"),
        NounColumn("State", "state", "badge"),
        NounColumn(
            "Access",
            lambda key: (
                "Full access" if key["scopes"] is None else ListCell(f"{len(key['scopes'])} of {len(SCOPES)} scopes", more=key["scopes"])
            ),
        ),
        NounColumn("Created", "createdAt", "time"),
        NounColumn("Expires", lambda key: ListCell(key["expiresAt"], "time") if key["expiresAt"] else "never"),
    ),
    list=administration.list_keys,
    empty="No API keys yet.",
    get=administration.get_key,
    form=NounForm(
        fields=(
            NounField("name", "Name", is_required=True, hint="The purpose of the key, such as the program that uses it."),
            NounField("access", "Access", "boxes", boxes=administration.ACCESS),
            NounField("expires", "Expires", "date", hint="The key expires when this day begins, in UTC. Without a date it never does."),
        ),
        stored=lambda key: key,
        create=administration.create_key,
        new_title="Create a key",
        new_button="Create the key",
    ),
    actions=(
        NounAction(
            "rotate",
            label="Rotate…",
            title=lambda key: f"Rotate {key['name']}",
            text="A new key with the same access is created and shown once. Both keys work until the old one expires.",
            button="Create the new key",
            act=administration.rotate_key,
            is_primary=True,
            questions=(
                NounField(
                    "hours", "The old key works for", "select", is_required=True, options=lambda _visit: administration.ROTATION_HOURS
                ),
            ),
            is_offered=lambda _visit, key: key["state"] == "active",
        ),
        NounAction(
            "revoke",
            label="Revoke",
            title=lambda key: f"Revoke {key['name']}",
            text="The next request with this key is refused, and its portal sessions end. This cannot be undone.",
            button="Revoke the key",
            act=administration.revoke_key,
            notice="key-revoked",
            goes_to_list=True,
            is_offered=lambda _visit, key: key["state"] != "revoked",
        ),
    ),
    has_row_actions=True,
)

SESSIONS = ConsoleNoun(
    path="/members/sessions",
    plural="Sessions",
    singular="session",
    needs=MemberRole.ADMIN,
    hint=lambda _visit: "Sessions of the console and the webhook portal. A session lasts eight hours; a new password ends all others.",
    columns=(
        NounColumn(
            "Browser",
            lambda session: ListCell(browser_name(session["agent"]), note=session["area"] + (" · this one" if session["isOwn"] else "")),
        ),
        NounColumn("Member", lambda session: session["name"] or ("Operator" if session["area"] == "console" else "API key")),
        NounColumn("Address", "address", "code"),
        NounColumn("Since", "createdAt", "moment"),
        NounColumn("Until", "expiresAt", "moment"),
    ),
    list=lambda tx, visit, _asked: administration.sessions(tx, visit, None),
    empty="No sessions.",
    name=lambda session: f"the session of {browser_name(session['agent'])} since {day(session['createdAt'])}",
    trail=lambda _tx, _visit: [("/members", "Members")],
    actions=(
        NounAction(
            "end",
            label="End",
            act=administration.end_session,
            needs=MemberRole.VIEWER,
            fields=lambda session: {"from": session["from"]},
        ),
    ),
    has_row_actions=True,
)

REQUESTS = ConsoleNoun(
    path="/requests",
    plural="Request log",
    singular="request",
    group="Administration",
    needs=MemberRole.ADMIN,
    is_slow=True,
    hint=lambda visit: (
        f"Requests of the last {round(visit.context.settings.kept.requests / DAY)} days, newest first. "
        "Keys, bodies and query strings are not stored."
    ),
    columns=(
        NounColumn("Request", lambda request: ListCell(f"{request['method']} {request['path']}", "code", note=request["requestId"])),
        NounColumn("Status", lambda request: ListCell(str(request["status"] or "none"), is_bad=not 0 < (request["status"] or 0) < 400)),
        NounColumn("Milliseconds", lambda request: f"{request['ms']:,.1f}", kind="number"),
        NounColumn("Key", lambda request: (request["key"].get("name") or "deleted") if request["key"] else ""),
        NounColumn("Time", "at", "moment"),
        NounColumn("From", "address", "code"),
    ),
    list=administration.list_requests,
    per_page=50,
    empty="No requests yet.",
    filters=(
        NounFilter("key", "Key", lambda tx: {key.id: key.name for key in keys.list_keys(tx)}),
        NounFilter("status", "Status", lambda _tx: {"400": "refused or failed", "500": "failed"}),
        NounFilter("id", "Request id"),
    ),
)

AUDIT = ConsoleNoun(
    path="/audit",
    plural="Audit log",
    singular="entry",
    group="Administration",
    needs=MemberRole.ADMIN,
    hint=lambda visit: (
        f"Changes to schema, members, keys, webhooks, reports and workflows in the last "
        f"{round(visit.context.settings.kept.audit / DAY)} days, newest first. Changes to a record are on the record's page."
    ),
    columns=(
        NounColumn("Change", lambda entry: entry["action"].replace(".", " ").replace("_", " ").capitalize()),
        NounColumn("Target", administration.subject_cell),
        NounColumn("Changes", administration.changes_cell),
        NounColumn(
            "By", lambda entry: ListCell(actor_name(entry["by"]), note="API key" if (entry["by"] or {}).get("type") == "key" else "")
        ),
        NounColumn("Time", "at", "moment"),
    ),
    list=administration.list_audit,
    per_page=50,
    empty="No changes yet.",
    filters=(NounFilter("about", "Target", lambda _tx: {name: name.capitalize() for name in administration.SUBJECTS}),),
)

SETTINGS = ConsoleNoun(
    path="/settings",
    plural="Settings",
    singular="settings",
    group="Administration",
    needs=MemberRole.ADMIN,
    is_single=True,
    get=lambda tx, _visit: preferences.get_settings(tx),
    name=lambda _settings: "Settings",
    trail=lambda _tx, _visit: (),
    form=NounForm(
        fields=(
            NAME,
            NounField(
                "timeZone",
                "Time zone",
                is_required=True,
                longest=60,
                placeholder="Europe/Berlin",
                hint="A name such as Europe/Berlin. Browsers show their own time zone; without scripts pages show this one.",
            ),
            NounField("currency", "Default currency", longest=3, placeholder="EUR", hint="Forms preselect it for new amounts."),
        ),
        stored=dict,
        change=administration.change_settings,
        subject=lambda _settings: "settings",
    ),
)

NOUNS = (ACTIVITIES, REPORTS, WORKFLOWS, ENDPOINTS, OBJECTS, ATTRIBUTES, MEMBERS, KEYS, SESSIONS, REQUESTS, AUDIT, SETTINGS)
PORTAL_NOUNS = (ENDPOINTS,)
