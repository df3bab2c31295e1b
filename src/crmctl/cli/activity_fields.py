"""From the options of `activities` to the fields of the wire: links, participants, the date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from crmctl.errors import NotFoundError, RejectedError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

T = TypeVar("T")
Fields = dict[str, Any]


def read_fields(
    runtime: Runtime,
    data: str | None,
    *,
    title: str | None,
    summary: str | None,
    date: str | None,
    participants: Sequence[str] | None,
) -> Fields:
    """--data, and over it what the other options say; links are `with_links`' business. Raises UsageError, NotFoundError."""
    from crmctl.cli.targets import read_json_object
    from crmctl.models.moments import timestamp

    fields = read_json_object(runtime, data) if data is not None else {}
    moment = timestamp(date, runtime.clock.now()) if date is not None else None
    given = {"title": title, "summary": summary, "activityDate": moment}
    fields |= {name: value for name, value in given.items() if value is not None}
    if participants:
        people = _Members(runtime)
        fields["participants"] = [_participant(people, text) for text in participants]
    return fields


def parse_links(links: Sequence[str] | None) -> list[tuple[str, str]]:
    """`OBJECT:ID` as pairs. Raises UsageError."""
    pairs = []
    for text in links or ():
        name, _, identity = text.partition(":")
        if not name.strip() or not identity.strip():
            raise UsageError(f"--link {text!r} is not OBJECT:ID", hint="for example --link people:3f2b0c1e-5a77-4a80-9a3c-0d5f3f6f2a11")
        pairs.append((name.strip(), identity.strip()))
    return pairs


def with_links(runtime: Runtime, fields: Fields, links: Sequence[tuple[str, str]], send: Callable[[Fields], T]) -> T:
    """`send(fields with the links)`. A refusal may be about an object that was made anew since its slug was cached: then once more."""
    if not links:
        return send(fields)

    def resolved() -> list[Fields]:
        return [{"objectId": runtime.directory.object_id(name), "recordId": identity} for name, identity in links]

    first = resolved()
    try:
        return send({**fields, "linkedRecords": first})
    except (NotFoundError, RejectedError) as error:
        if error.outcome_unknown:
            raise
        runtime.directory.forget()
        current = resolved()
        if current == first:
            raise
        return send({**fields, "linkedRecords": current})


class _Members:
    """The organization's members, asked for once and only when an address has to be looked up."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._users: list[tuple[str, str]] | None = None

    def user_id(self, email: str) -> str:
        if self._users is None:
            users = [member.user for member in self._runtime.crm.list_members() if member.user is not None]
            self._users = [(user.email or "", user.id) for user in users if user.id]
        found = [identity for address, identity in self._users if address.casefold() == email.casefold()]
        if len(set(found)) == 1:
            return found[0]
        if found:
            raise UsageError(f"several members have the address {email}: {', '.join(found)}", hint="give the id: --participant user:ID")
        from difflib import get_close_matches

        near = get_close_matches(email, [address for address, _ in self._users if address])
        hint = f"did you mean {' or '.join(near)}?" if near else "crmctl members list shows who there is"
        raise NotFoundError(f"there is no member with the address {email!r}", hint=hint)


def _participant(people: _Members, text: str) -> Fields:
    from crmctl.models.ids import is_uuid

    kind, _, who = (part.strip() for part in text.partition(":"))
    if kind not in ("user", "person") or not who:
        raise UsageError(f"--participant {text!r} is neither user:EMAIL, user:ID nor person:ID", hint="user is a member, person a record")
    if kind == "user" and not is_uuid(who):
        if "@" not in who:
            raise UsageError(f"--participant {text!r}: {who!r} is neither an email address nor an id")
        return {"type": kind, "id": people.user_id(who)}
    if not is_uuid(who):
        raise UsageError(f"--participant {text!r}: a person is given by the id of the record", hint="crmctl records list people")
    return {"type": kind, "id": who}
