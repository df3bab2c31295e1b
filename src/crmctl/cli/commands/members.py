"""`crmctl members`: list the members of the organization, change their roles, remove them."""

from __future__ import annotations

from typing import Annotated

from crmctl.cli.options import argument
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import find_member
from crmctl.cli.verbs import NOUNS, noun_app

NOUN = NOUNS["members"]
app = noun_app("members")

MemberArgument = Annotated[str, argument("MEMBER", "Email address, id or exact name of the member.")]


@app.command("role", writes=True, examples=["crmctl members role ada@acme.com admin", "crmctl members role ada@acme.com viewer --dry-run"])
def change_role(
    runtime: Runtime,
    who: MemberArgument,
    role: Annotated[str, argument("owner|admin|member|viewer", "The new role.")],
) -> None:
    """Change the role of a member.

    Needs a key with full access that an owner or admin made; only owners change owners. Only crmctl's own service changes members.
    """
    from crmctl.client.answers import read_one
    from crmctl.models.resources import Member

    runtime.emitter.check_fields(NOUN.view)
    member = find_member(runtime, runtime.crm.list_members(), who)
    answer = runtime.crm.extension("PATCH /members/{memberId}", member.id, body={"role": role})
    runtime.emitter.emit_item(read_one(answer, "member", Member), NOUN.view)


@app.command("remove", writes=True, examples=["crmctl members remove ada@acme.com --dry-run"])
def remove_member(runtime: Runtime, who: MemberArgument) -> None:
    """Remove a member from the organization; asks first.

    Records and API keys of the member stay; crmctl names the keys that still work. Needs a key with full access that an owner or admin
    made; only owners remove owners. Only crmctl's own service removes members.
    """
    runtime.emitter.check_result({"deleted": 1, "keys": []})
    member = find_member(runtime, runtime.crm.list_members(), who)
    user = member.user
    description = f"the {member.role} {user.name} ({user.email})" if user else f"the member {member.id}"
    runtime.confirm(f"Remove {description}")
    answer = runtime.crm.extension("DELETE /members/{memberId}", member.id)
    keys = answer.json().get("keys") or []
    runtime.done({"deleted": 1, "keys": keys}, f"removed {description}")
    if keys:
        named = ", ".join(f"{key['name']} ({key['id']})" for key in keys)
        runtime.messages.warn(f"API keys that this member made still work: {named}; the console revokes keys")
