"""Pages rendered from a noun's declaration: list, form, action confirmation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.console.cells import ListCell
from crmctl.service.console.pages import FORM_LIMIT, PageRoute, form_at, page_at
from crmctl.service.console.visits import ConsolePage, Outcome, Redirect, Visit, moment
from crmctl.service.faults import BadRequest, Conflict
from crmctl.service.store import logs
from crmctl.service.store.members import MemberRole
from crmctl.service.store.tx import Tx
from crmctl.values import yaml_text

LONGEST_FILTER = 200


@frozen
class NounColumn:
    """`value` names a field of the thing, or returns a cell or its text. `kind` is that of `ListCell`, or badge."""

    title: str
    value: str | Callable[[Json], ListCell | str]
    kind: str = "text"

    def cell(self, thing: Json) -> ListCell:
        value = thing[self.value] or "" if isinstance(self.value, str) else self.value(thing)
        if isinstance(value, ListCell):
            return value
        return ListCell(badge=value) if self.kind == "badge" else ListCell(value, self.kind)


@frozen
class BoxChoice:
    """Radio buttons with the values `everything` and `only`, and check boxes called `box`; `one` and `all` name them in errors."""

    everything: str
    only: str
    box: str
    one: str
    all: str
    groups: Mapping[str, Sequence[tuple[str, str]]]
    labels: tuple[tuple[str, str], tuple[str, str]]

    def read(self, visit: Visit, field: str) -> list[str] | None:
        """Return the ticked boxes, None for everything. Raises BadRequest for both, or neither."""
        chosen, ticked = set(visit.chosen(field)), visit.chosen(self.box)
        if chosen == {self.everything} and not ticked:
            return None
        if chosen <= {self.only} and ticked:
            return ticked
        if self.everything in chosen:
            raise BadRequest(f"both {self.all} and single ones are chosen; choose one or the other", {"field": field})
        either = "" if chosen == {self.only} else f", or {self.all}"
        raise BadRequest(f"choose at least one {self.one}{either}", {"field": field})

    def shown(self, visit: Visit, field: str) -> str:
        """Return the button to preselect in a form that comes back; it never grants more than the ticked boxes."""
        if visit.chosen(self.box):
            return self.only
        answer = visit.text(field)
        return answer if answer in (self.everything, self.only) else ""


@frozen
class NounField:
    """`kind`: text, textarea, email, url, mono, date, datetime-local, select, radio, boxes. `on` limits it to `new` or `edit` forms."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    note: str = ""
    is_required: bool = False
    longest: int = 200
    placeholder: str = ""
    options: Callable[[Visit], Mapping[str, tuple[str, str]]] = lambda _visit: {}
    boxes: BoxChoice | None = None
    on: str = ""


@frozen
class NounForm:
    """`stored` returns the current value of each field. `create` and `change` save and return where to go.

    They raise BadRequest or Conflict. If `is_readable`, visitors who may not save see the page without the fields.
    """

    fields: Sequence[NounField]
    stored: Callable[[Json], Json]
    create: Callable[[Tx, Visit], Outcome] | None = None
    change: Callable[[Tx, Visit, Json], Outcome] | None = None
    new_title: str = ""
    """Also the button of the list that leads to the empty form."""
    new_button: str = "Create"
    edit_path: str = ""
    """Below the thing's own path; empty where the form is the thing's page."""
    needs: MemberRole = MemberRole.ADMIN
    is_readable: bool = False
    template: str = "form.html"
    values: Callable[[Tx, Visit, Json, bool], Json] = lambda _tx, _visit, _stored, _is_sent: {}
    """Return more template values. `_stored` is empty for a new thing; `_is_sent` tells whether the visitor sent the form."""
    pressed: Callable[[Tx, Visit], Json | None] = lambda _tx, _visit: None
    """Return template values if a button only changes the form; then nothing is saved."""
    subject: Callable[[Json], str] = lambda thing: str(thing["id"])
    """The thing's name in the audit log."""
    limit: int = FORM_LIMIT
    facts: Callable[[Tx, Visit, Json], Sequence[tuple[str, ListCell]]] = lambda _tx, _visit, _thing: ()


Act = Callable[[Tx, Visit, Json], Outcome | Json | str | None]
"""Return where to go, values for the thing's page, a notice, or None for the usual notice."""


@frozen
class NounAction:
    """One thing to do to a thing. With a `text` a page asks first; `label` is the button on the thing's page or row."""

    name: str
    label: str | Callable[[Json], str]
    act: Act
    title: Callable[[Json], str] | None = None
    """Of the page that asks; `Delete` and the thing's name if there is none."""
    text: str | Callable[[Tx, Json], str] = ""
    button: str = ""
    notice: str = ""
    needs: MemberRole = MemberRole.ADMIN
    goes_to_list: bool = False
    anchor: str = ""
    is_primary: bool = False
    fields: Callable[[Json], Mapping[str, str]] = lambda _thing: {}
    is_offered: Callable[[Visit, Json], bool] = lambda _visit, _thing: True
    is_slow: bool = False
    is_offered_above: bool = True
    """Whether the button stands at the top of the thing's page; the page's template may place it elsewhere."""
    questions: Sequence[NounField] = ()
    """Fields of the page that asks."""

    def button_on(self, thing: Json) -> str:
        return self.label if isinstance(self.label, str) else self.label(thing)


def switch_action(name: str, change: Callable[[Tx, Visit, Json, bool], object], notice: str, **more: Any) -> NounAction:
    """Return the action that turns a thing on or off: `active` or `enabled`."""
    flag, *verbs = ("isActive", "Activate", "Deactivate") if name == "active" else ("enabled", "Enable", "Disable")

    def act(tx: Tx, visit: Visit, thing: Json) -> str:
        is_on = visit.text(name) == "true"
        change(tx, visit, thing, is_on)
        return notice if is_on else notice.replace("active", "inactive").replace("enabled", "disabled")

    return NounAction(
        name, lambda thing: verbs[bool(thing[flag])], act, fields=lambda thing: {name: "false" if thing[flag] else "true"}, **more
    )


def deletion_action(singular: str, text: str | Callable[[Tx, Json], str], act: Act, **more: Any) -> NounAction:
    """Return the action that asks, deletes the thing and leads to the list."""
    notice = f"{singular}-deleted"
    return NounAction("delete", "Delete…", act, text=text, button=f"Delete the {singular}", notice=notice, goes_to_list=True, **more)


@frozen
class NounFilter:
    """`options` is None for a text field."""

    name: str
    label: str
    options: Callable[[Tx], Mapping[str, str]] | None = None


@frozen
class NounQuery:
    """The page and filters in the address of a list."""

    limit: int
    offset: int
    filters: Mapping[str, str]


@frozen
class ConsoleNoun:
    """A kind of thing the console manages: its list, form, actions, role and texts."""

    path: str
    plural: str
    singular: str
    columns: Sequence[NounColumn] = ()
    list: Callable[[Tx, Visit, NounQuery], Sequence[Json]] = lambda _tx, _visit, _asked: ()
    is_single: bool = False
    """Whether there is one such thing; its form is the page at `path`."""
    empty: str = ""
    group: str = ""
    """Of the navigation; a noun without a group has no link there."""
    needs: MemberRole = MemberRole.VIEWER
    hint: Callable[[Visit], str] = lambda _visit: ""
    per_page: int = 0
    is_slow: bool = False
    get: Callable[[Tx, Visit], Json] = lambda _tx, visit: {"id": visit.id("id")}
    name: Callable[[Json], str] = lambda thing: str(thing["name"])
    may_open: Callable[[Visit, Json], bool] = lambda _visit, _thing: True
    state: Callable[[Json], str] = lambda _thing: ""
    filters: Sequence[NounFilter] = ()
    form: NounForm | None = None
    actions: Sequence[NounAction] = ()
    has_row_actions: bool = False
    links: Sequence[tuple[str, str, MemberRole]] = ()
    """Further buttons of the list: text, path, role."""
    base: str = ""
    """Path of the thing this noun belongs to, with its parameters."""
    trail: Callable[[Tx, Visit], Sequence[tuple[str, str]]] | None = None
    show: Callable[[Tx, Visit, Json], Json] | None = None
    """Return the values of the thing's own page, whose template has the noun's name; without it the form is the thing's page."""
    children: ConsoleNoun | None = None
    """Listed on the thing's page."""

    def path_of(self, visit: Visit, thing: Json) -> str:
        return self.path if self.is_single else f"{self.list_path(visit)}/{thing['id']}"

    def list_path(self, visit: Visit) -> str:
        return self.base.replace("{objectId:uuid}", str(visit.path.get("objectId") or visit.path.get("id"))) + self.path

    def opens(self, visit: Visit, thing: Json) -> bool:
        """Whether the thing has a page of its own for this visitor."""
        return bool(self.show or (self.form and self.form.change)) and self.may_open(visit, thing)

    def action(self, name: str) -> NounAction:
        return next(action for action in self.actions if action.name == name)


def noun_routes(noun: ConsoleNoun) -> list[PageRoute]:
    """Return the pages of a noun."""
    routes = _form_routes(noun, noun.form) if noun.form else []
    if not noun.is_single and not noun.base:
        routes.append(page_at(noun.path, lambda tx, visit: _list_page(tx, visit, noun), noun.needs, is_slow=noun.is_slow))
    if noun.show:
        routes.append(page_at(f"{noun.path}/{{id:uuid}}", lambda tx, visit: thing_page(tx, visit, noun), noun.needs))
    return routes + [route for action in noun.actions for route in _action_routes(noun, action)]


def _list_page(tx: Tx, visit: Visit, noun: ConsoleNoun) -> ConsolePage:
    chosen = {list_filter.name: visit.query.get(list_filter.name, "").strip()[:LONGEST_FILTER] for list_filter in noun.filters}
    query = {name: text for name, text in chosen.items() if text}
    part = visit.part(lambda limit, offset: noun.list(tx, visit, NounQuery(limit, offset, chosen)), noun.per_page or 10_000)
    values = {
        **part,
        "noun": noun,
        "rows": table_rows(visit, noun, part["rows"]),
        "filters": [
            (list_filter, dict(list_filter.options(tx)) if list_filter.options else None, chosen[list_filter.name])
            for list_filter in noun.filters
        ],
        "query": f"{urlencode(query)}&" if query else "",
        "trail_parts": noun.trail(tx, visit) if noun.trail else (),
        "buttons": [link for link in noun.links if visit.may(link[2])],
    }
    return ConsolePage("list.html", values)


def offered(visit: Visit, noun: ConsoleNoun, thing: Json) -> list[NounAction]:
    """Return the actions this visitor may take on the thing."""
    return [action for action in noun.actions if action.is_offered_above and visit.may(action.needs) and action.is_offered(visit, thing)]


def _form_routes(noun: ConsoleNoun, form: NounForm) -> list[PageRoute]:
    routes = []
    list_path = noun.base + noun.path
    thing_path = list_path if noun.is_single else f"{list_path}/{{id:uuid}}{form.edit_path}"
    if create := form.create:

        def new_thing(tx: Tx, visit: Visit) -> ConsolePage:
            return form_page(tx, visit, noun)

        def create_thing(tx: Tx, visit: Visit) -> Outcome:
            pressed = form.pressed(tx, visit)
            return form_page(tx, visit, noun, None, pressed) if pressed else create(tx, visit)

        routes.append(page_at(f"{list_path}/new", new_thing, form.needs))
        routes.append(form_at(list_path, create_thing, form.needs, form_limit=form.limit, back=new_thing))
    if change := form.change:

        def edit_thing(tx: Tx, visit: Visit) -> ConsolePage:
            return form_page(tx, visit, noun, noun.get(tx, visit))

        def change_thing(tx: Tx, visit: Visit) -> Outcome:
            thing = noun.get(tx, visit)
            if pressed := form.pressed(tx, visit):
                return form_page(tx, visit, noun, thing, pressed)
            _refuse_if_saved_meanwhile(tx, visit, form.stored(thing), form.subject(thing))
            return change(tx, visit, thing)

        routes.append(page_at(thing_path, edit_thing, noun.needs if form.is_readable else form.needs))
        routes.append(form_at(thing_path, change_thing, form.needs, form_limit=form.limit, back=edit_thing))
    return routes


def form_page(tx: Tx, visit: Visit, noun: ConsoleNoun, thing: Json | None = None, pressed: Json | None = None) -> ConsolePage:
    """Return the form of a new thing or of this one; after an error or a pressed button with the values as the visitor typed them."""
    form = noun.form
    assert form is not None
    stored, is_sent = form.stored(thing) if thing else {}, bool(visit.error or pressed)
    fields = [field for field in form.fields if field.on in ("", "new" if thing is None else "edit")]
    texts: Json = {}
    for field in fields:
        if field.boxes:
            kept = None if thing is None or visit.error else (field.boxes.everything if stored[field.name] is None else field.boxes.only)
            texts[field.name] = field.boxes.shown(visit, field.name) if kept is None else kept
            texts[field.boxes.box] = visit.chosen(field.boxes.box) if kept is None else stored[field.name] or []
        else:
            read = visit.chosen if field.kind == "ticks" else visit.raw
            texts[field.name] = read(field.name) if thing is None or is_sent else stored.get(field.name, "")
    path = noun.path_of(visit, thing) if thing else noun.list_path(visit)
    trail = list(noun.trail(tx, visit)) if noun.trail else [(noun.path, noun.plural)]
    values = {
        "noun": noun,
        "form": form,
        "thing": thing,
        "title": form.new_title if thing is None else f"Edit {noun.singular}" if form.edit_path else noun.name(thing),
        "trail_parts": trail + ([(path, noun.name(thing))] if thing and form.edit_path else []),
        "fields": [(field, field.options(visit), texts[field.name]) for field in fields],
        "texts": texts,
        "form_id": visit.form_id(),
        "path": path,
        "action": f"{path}{form.edit_path}" if thing else path,
        "back": path if thing and form.edit_path else trail[-1][0] if trail else "",
        "facts": form.facts(tx, visit, thing) if thing else (),
        "actions": offered(visit, noun, thing) if thing and not form.edit_path else [],
        "may_save": visit.may(form.needs),
        "version": "" if thing is None else visit.text("version") if pressed else _version(stored),
        "saved": yaml_text.dumps(dict(stored)) if isinstance(visit.error, SavedMeanwhile) else "",
    }
    return ConsolePage(form.template, values | form.values(tx, visit, stored, is_sent) | (pressed or {}))


def thing_page(tx: Tx, visit: Visit, noun: ConsoleNoun, more: Json | None = None) -> ConsolePage:
    """Return the page of the thing in the path; `more` values come from an action that ends on this page."""
    assert noun.show is not None
    thing = noun.get(tx, visit)
    path = noun.path_of(visit, thing)
    values = {
        "noun": noun,
        "thing": thing,
        "path": path,
        "trail_parts": list(noun.trail(tx, visit)) if noun.trail else [(noun.path, noun.plural)],
        "actions": offered(visit, noun, thing),
        "may_edit": noun.form is not None and bool(noun.form.edit_path) and visit.may(noun.form.needs),
        "facts": (),
        "children": noun.children,
        "child_rows": table_rows(visit, noun.children, noun.children.list(tx, visit, NounQuery(10_000, 0, {}))) if noun.children else [],
    }
    return ConsolePage(f"{noun.singular}.html", values | noun.show(tx, visit, thing) | (more or {}))


def table_rows(visit: Visit, noun: ConsoleNoun, things: Sequence[Json]) -> list[tuple[Json, list[ListCell], list[NounAction]]]:
    """Return each thing with its cells and the actions of its row."""
    return [
        (thing, [column.cell(thing) for column in noun.columns], offered(visit, noun, thing) if noun.has_row_actions else [])
        for thing in things
    ]


def _action_routes(noun: ConsoleNoun, action: NounAction) -> list[PageRoute]:
    path = f"{noun.base}{noun.path}/{{id:uuid}}/{action.name}"

    def ask(tx: Tx, visit: Visit) -> ConsolePage:
        return confirmation(tx, visit, noun, action, noun.get(tx, visit))

    def act(tx: Tx, visit: Visit) -> Outcome:
        thing = noun.get(tx, visit)
        outcome = action.act(tx, visit, thing)
        if isinstance(outcome, dict):
            return thing_page(tx, visit, noun, outcome)
        if outcome is not None and not isinstance(outcome, str):
            return outcome
        back = noun.trail(tx, visit)[-1][0] if noun.trail else noun.list_path(visit)
        return Redirect(back if action.goes_to_list else noun.path_of(visit, thing), outcome or action.notice)

    if action.text:
        return [page_at(path, ask, action.needs, is_slow=action.is_slow), form_at(path, act, action.needs, back=ask)]
    return [form_at(path, act, action.needs, back=(lambda tx, visit: thing_page(tx, visit, noun)) if noun.show else None)]


def confirmation(tx: Tx, visit: Visit, noun: ConsoleNoun, action: NounAction, thing: Json) -> ConsolePage:
    path, title = noun.path_of(visit, thing), action.title(thing) if action.title else f"Delete {noun.name(thing)}"
    values = {
        "title": title,
        "text": action.text if isinstance(action.text, str) else action.text(tx, thing),
        "action": f"{path}/{action.name}",
        "button": action.button or title,
        "fields": [(field, field.options(visit), "") for field in action.questions],
        "is_primary": action.is_primary,
        "back": path if noun.opens(visit, thing) else noun.list_path(visit),
    }
    return ConsolePage("confirm.html", values)


class SavedMeanwhile(Conflict):
    """Someone else changed the thing after this form was opened."""


def _refuse_if_saved_meanwhile(tx: Tx, visit: Visit, stored: Mapping[str, Any], subject: str) -> None:
    """Raise SavedMeanwhile if `stored`, the values the form edits, changed after the form was opened. A form without a version passes."""
    if visit.text("version") not in ("", _version(stored)):
        entry = next(iter(logs.list_entries(tx, 1, subject=subject)), None)
        saver = actor_name(entry["by"]) if entry else "someone else"
        at = f" on {moment(entry['at'])}" if entry else ""
        raise SavedMeanwhile(f"{saver} saved this{at}; the saved values are below and your changes are kept; save again to replace them")


def actor_name(actor: Mapping[str, Any] | None) -> str:
    """Return the name of a member, key or workflow; the operator and the service have one name everywhere."""
    if actor is None:
        return "the service"
    return str(actor.get("name") or {"operator": "Operator"}.get(actor["type"], f"a deleted {actor['type']}"))


def _version(stored: Mapping[str, Any]) -> str:
    return hashlib.blake2b(jsontext.dumps(dict(stored)).encode(), digest_size=12).hexdigest()
