"""`crmctl service`: administer an embedded service's own data."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.commands.serve import DatabaseOption, DataOption, service_libraries
from crmctl.cli.options import argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.cli.service_data import opened, require_data, settings_for, write
from crmctl.cli.targets import named_value, read_input
from crmctl.config.settings import is_web_address
from crmctl.errors import NotFoundError, PartialError, UsageError
from crmctl.models.ids import check_choice
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.models.scopes import SCOPES
from crmctl.service.context import new_id
from crmctl.service.faults import NotFound
from crmctl.service.store import keys as store
from crmctl.service.store import logs, members, short_lived_keys
from crmctl.service.store.keys import ADDRESS, get_value, parse_expiry
from crmctl.service.store.tx import to_micros, to_wire
from crmctl.values.moments import in_a_sentence, read_moment

if TYPE_CHECKING:
    from crmctl.service.store.keys import ApiKey
    from crmctl.service.store.tx import Tx


ROLES = ("owner", "admin", "member", "viewer")

app = CommandApp("Administer an embedded service's own data.")
keys = CommandApp("Create, list and revoke API keys.")
members_app = CommandApp("Invite members to the console, and give them new links.")
trusts = CommandApp("Let CI jobs exchange their identity for short-lived API keys.")

EmailArgument = Annotated[str, argument("EMAIL", "The member's email address.")]


@members_app.command("list", examples=["crmctl service members list"])
def list_members(runtime: Runtime, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """List the members, their roles and their access.

    A member is active (with a password), invited (with a valid link), or has no access."""
    with opened(runtime, data, database_url) as engine:
        now = runtime.clock.now()
        member_rows, access = engine.read(lambda tx: (members.list_members(tx), members.access_of_members(tx, now=now)))
    rows = [_describe_member(member) | {"access": access.get(member["id"], "none")} for member in member_rows]
    runtime.emitter.emit_rows(rows, "members", first=("name", "email", "role", "access", "id"))


@members_app.command(
    "invite",
    writes=None,
    examples=["crmctl service members invite ada@example.com --name 'Ada Lovelace' --role admin"],
)
def invite_member(
    runtime: Runtime,
    email: EmailArgument,
    name: Annotated[str | None, option("--name", "NAME", "Name of the member (default: the address).")] = None,
    role: Annotated[str, option("--role", "owner|admin|member|viewer", "Role of the member.")] = "member",
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Add a member and print a link to set the password.

    The link works once, within three days. The service sends no mail: pass the link on to the member only.
    """
    check_choice("--role", role, ROLES)
    with opened(runtime, data, database_url, writes=True) as engine:

        def invite(tx: Tx) -> Json:
            member = members.create_member(tx, name=name or email, email=email, role=role, ids=new_id, now=runtime.clock.now())
            return _linked(runtime, tx, member)

        described = write(runtime, engine, invite)
    _emit(runtime, described)


@members_app.command("reset", writes=None, examples=["crmctl service members reset ada@example.com"])
def reset_password(runtime: Runtime, email: EmailArgument, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """Print a link to set a new password; earlier links become invalid.

    The present password works until the member uses the link, which ends all of the member's sessions.
    """
    with opened(runtime, data, database_url, writes=True) as engine:

        def reset(tx: Tx) -> Json:
            member = members.find_member_by_email(tx, email)
            if member is None:
                raise NotFoundError(f"there is no member {email!r}", hint="crmctl service members list")
            return _linked(runtime, tx, member)

        described = write(runtime, engine, reset)
    _emit(runtime, described)


def _linked(runtime: Runtime, tx: Tx, member: Json) -> Json:
    from crmctl.service.console.visits import make_password_link

    link = make_password_link(tx, _address(tx), member["id"], now=runtime.clock.now())
    return _describe_member(member) | {"passwordUrl": link.url, "expiresAt": to_wire(to_micros(link.expires_at))}


def _address(tx: Tx) -> str:
    if (address := get_value(tx, ADDRESS)) is None:
        raise UsageError("this service has never been started", hint="crmctl serve")
    return address


def _describe_member(member: Json) -> Json:
    return {"id": member["id"], "name": member["user"]["name"], "email": member["user"]["email"], "role": member["role"]}


def _emit(runtime: Runtime, described: Json) -> None:
    # After a dry run neither id nor link exists.
    shown = {field: described[field] for field in ("name", "email", "role")}
    runtime.emitter.emit_item({"dryRun": True} | shown if runtime.dry_run else described)


SHOWN = 20


@app.command("backup", examples=["crmctl service backup crm.backup"])
def backup(
    runtime: Runtime,
    target: Annotated[str, argument("FILE|s3://BUCKET/NAME", "Where the backup goes.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Write all of a service into one file, while it runs.

    The file holds the database as of one moment, from either engine, and the files uploaded to the service (not those in an S3-compatible
    storage). It is read back before it gets its name, so that a file with the name is complete. It also holds the keys that sign links:
    keep it as safe as API keys.

    s3:// needs pip install 'crmctl[s3]' and uses the credentials, region and AWS_ENDPOINT_URL of the AWS tools.
    """
    settings = settings_for(runtime, data, database_url)
    require_data(settings)
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.backup.backup import make_backup

        if _is_remote(target):
            from crmctl.service.backup.backup import RemotePlace

            place = RemotePlace(target)
            with tempfile.TemporaryDirectory(prefix="crmctl-backup-") as folder:
                archive = make_backup(engine, settings, Path(folder) / "backup", runtime.clock)
                place.put(Path(folder) / "backup")
        else:
            archive = make_backup(engine, settings, Path(target), runtime.clock)
    _show(runtime, {"file": target}, archive)


@app.command(
    "restore",
    writes=None,
    examples=[
        "crmctl service restore crm.backup --data ./restored",
        "crmctl service restore deals --as-of 'yesterday 15:30' --dry-run",
    ],
)
def restore(
    runtime: Runtime,
    what: Annotated[str, argument("FILE|OBJECT", "A backup (FILE or s3://BUCKET/NAME); with --as-of, the slug of an object.")],
    as_of: Annotated[str | None, option("--as-of", "MOMENT", "A moment, such as 'yesterday 15:30'.")] = None,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Restore a service from a backup, or records as of a moment.

    A backup needs an empty place: an empty --data directory or an empty --database-url. It is checked first, and restored completely or not
    at all.

    With --as-of, records created since that moment are deleted, deleted ones are created again under their ids, and changed ones get their
    values back. These are ordinary changes: webhooks and workflows get them, the history shows them, and they can be taken back, too. The
    service may run meanwhile. --dry-run shows what would happen.
    """
    if as_of is not None:
        restore_records(runtime, what, as_of, data, database_url)
        return
    if not _is_remote(what) and not Path(what).is_file():
        raise UsageError(f"there is no backup {what}", hint=f"for the records of an object: crmctl service restore {what} --as-of MOMENT")
    runtime.guard_read_only()
    with service_libraries(), contextlib.ExitStack() as stack:
        from crmctl.service.backup.backup import restore_backup, unpack

        source = Path(what)
        if _is_remote(what):
            from crmctl.service.backup.backup import RemotePlace

            source = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crmctl-restore-"))) / "backup"
            RemotePlace(what).get(source)
        if runtime.dry_run:
            manifest = unpack(source, None, what)
            _show(runtime, {"dryRun": True, "file": what}, {name: manifest[name] for name in ("createdAt", "records", "files")})
            return
        restored = restore_backup(source, settings_for(runtime, data, database_url), what)
    _show(runtime, {"file": what}, restored)


def _is_remote(place: str) -> bool:
    return place.startswith("s3://")


def _show(runtime: Runtime, about: Json, wire: Json) -> None:
    as_of = in_a_sentence(str(wire["createdAt"]), runtime.clock.now())
    size = f", {size_text(wire['bytes'])}" if "bytes" in wire else ""
    text = f"{about['file']}: {wire['records']:,} records, {wire['files']:,} uploaded files{size}, as of {as_of}"
    runtime.emitter.emit_result(about | wire, text=text)


def restore_records(runtime: Runtime, slug: str, as_of: str, data: Path | None, database_url: str | None) -> None:
    """Restore the records of an object as of a moment. Raises NotFoundError, RejectedError, PartialError when some could not be
    restored."""
    moment = read_moment(as_of, runtime.clock.now()).at.timestamp()
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.store import objects, record_history

        crm_object = engine.read(lambda tx: objects.find_object_by_slug(tx, slug))
        if crm_object is None:
            raise NotFound(f"there is no object with the slug {slug!r}")
        candidates = engine.read(lambda tx: record_history.find_candidates(tx, crm_object["id"], moment, now=runtime.clock.now()))
        if candidates.ids:
            runtime.confirm(f"Take {len(candidates.ids):,} records of {slug} back to {to_wire(to_micros(moment))}")
        restored = record_history.restore(
            candidates, lambda work: write(runtime, engine, work), crm_object["id"], lambda: {"ids": new_id, "now": runtime.clock.now()}
        )
    counts = {name: restored.counts[name] for name in ("created", "updated", "deleted", "unchanged")}
    summary: Json = {"dryRun": True} if runtime.dry_run else {}
    summary |= {"object": slug, "asOf": to_wire(to_micros(moment)), **counts, "failed": len(restored.failed)}
    summary |= {"leftOut": sorted(restored.left_out)} if restored.left_out else {}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing has changed since"
    runtime.emitter.emit_result(summary, text=text)
    if restored.left_out:
        runtime.messages.warn(f"left out, because the attributes are gone or changed their type: {', '.join(sorted(restored.left_out))}")
    if restored.failed:
        first = dict(list(restored.failed.items())[:SHOWN])
        why = "; ".join([*dict.fromkeys(restored.failed.values())][:2])
        raise PartialError(f"{len(restored.failed):,} records stay as they are: {why}", details={"failed": first})


LimitOption = Annotated[int, option("--limit", "N", "Show at most N.", min=1, max=10_000)]


@app.command("requests", examples=["crmctl service requests --errors --since -1h"])
def list_requests(
    runtime: Runtime,
    key: Annotated[str | None, option("--key", "KEY-ID", "Only requests of this API key.")] = None,
    request: Annotated[str | None, option("--request", "ID", "Only the request with this X-Request-Id.")] = None,
    failed: Annotated[bool, flag("--errors", "Only refused or failed requests (status 400 and up).")] = False,
    since: Annotated[str | None, option("--since", "MOMENT", "Only later requests, such as -1h.")] = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """List the requests that a service answered, newest first.

    Shows when, which key, what, the status, the duration, and from where. Requests are kept for 7 days unless serve --keep says otherwise.
    """
    moment = None if since is None else read_moment(since, runtime.clock.now()).at.timestamp()
    with opened(runtime, data, database_url) as engine:
        entries = engine.read(
            lambda tx: logs.list_requests(tx, limit, key_id=key, request_id=request, status=400 if failed else None, since=moment)
        )
    rows = [entry | {"key": entry["key"] and entry["key"].get("name", entry["key"]["id"])} for entry in entries]
    runtime.emitter.emit_rows(rows, "requests", first=("at", "method", "path", "status", "ms", "key"))


@app.command("audit", examples=["crmctl service audit --action key"])
def list_audit(
    runtime: Runtime,
    action: Annotated[str | None, option("--action", "ACTION", "Only this action, such as key.created, or all of a noun: key.")] = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """List changes of the schema, keys, members, endpoints, reports and workflows.

    Newest first. Changes of records are in their history: crmctl records history.
    """
    with opened(runtime, data, database_url) as engine:
        entries = engine.read(lambda tx: logs.list_entries(tx, limit, action=action))
    rows = [entry | {"by": entry["by"] and entry["by"].get("name", entry["by"]["type"])} for entry in entries]
    runtime.emitter.emit_rows(rows, "entries", first=("at", "by", "action", "about"))


@keys.command("create", writes=None, examples=["crmctl service keys create --name ci --scope records:read --expires 30d -o json"])
def create_key(
    runtime: Runtime,
    name: Annotated[str, option("--name", "NAME", "Purpose of the key.")],
    scope: Annotated[list[str] | None, option("--scope", "SCOPE", "A scope of the key; repeatable.")] = None,
    full_access: Annotated[bool, flag("--full-access", "Grant every scope.")] = False,
    expires: Annotated[str | None, option("--expires", "DATE|30d", "Expiry of the key (default: never).")] = None,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Create an API key and show it once.

    Give the scopes it needs, or --full-access. Only a hash of the key is stored.
    """
    if bool(scope) == full_access:
        raise UsageError("say what the key may do: --scope SCOPE (repeatable), or --full-access", hint="crmctl help service keys create")
    with opened(runtime, data, database_url, writes=True) as engine:
        now = runtime.clock.now()
        end = parse_expiry(expires, now) if expires else None
        scopes = None if full_access else frozenset(scope or ())
        key, secret = write(runtime, engine, lambda tx: store.create_key(tx, name=name, scopes=scopes, expires_at=end, ids=new_id, now=now))
    described = _describe(key)
    settled = {field: described[field] for field in ("name", "scopes", "expiresAt")}
    runtime.emitter.emit_item({"dryRun": True} | settled if runtime.dry_run else {"id": key.id} | settled | {"key": secret})


@keys.command("list", examples=["crmctl service keys list"])
def list_keys(runtime: Runtime, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """List the API keys without their secrets; revoked ones too."""
    with opened(runtime, data, database_url) as engine:
        api_keys = engine.read(store.list_keys)
    rows = [_describe(key) for key in api_keys]
    runtime.emitter.emit_rows(rows, "keys", first=("name", "scopes", "id", "expiresAt", "revokedAt"))


@keys.command("revoke", writes=None, examples=["crmctl service keys revoke 6f2c1f0e-7a53-4f0e-9a54-0d8f5b1f2a11"])
def revoke_key(
    runtime: Runtime,
    key_id: Annotated[str, argument("KEY-ID", "Id of the key, from keys list.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Revoke an API key for good; the service refuses its next request."""
    with opened(runtime, data, database_url, writes=True) as engine:
        key = write(runtime, engine, lambda tx: store.revoke_key(tx, key_id, now=runtime.clock.now()))
    runtime.emitter.emit_item({"dryRun": True} | _describe(key) if runtime.dry_run else _describe(key))


@app.command("console", examples=["crmctl service console", "crmctl service console --open"])
def console(
    runtime: Runtime,
    open_browser: Annotated[bool, flag("--open", "Also open it in the browser.")] = False,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print a link that opens the console of a running service.

    The link works once, within ten minutes; the session it opens lasts eight hours. Whoever uses it can create API keys: do not pass it on.
    """
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.console.visits import CONSOLE, make_link

        link = engine.read(lambda tx: make_link(tx, _address(tx), CONSOLE, now=runtime.clock.now()))
    runtime.emitter.emit_item({"consoleUrl": link.url, "expiresAt": to_wire(to_micros(link.expires_at))})
    if open_browser:
        runtime.browse(link.url)


@app.command("load", writes=None, examples=["crmctl service load crm.yaml", "crmctl service load crm.yaml --dry-run"])
def load_definitions(
    runtime: Runtime,
    file: Annotated[str, argument("FILE|DIR", "A definitions file, - for stdin, or a folder of crmctl org pull.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Apply a YAML file of members, objects, reports, workflows and webhook endpoints.

    The file of crmctl schema pull is one, too. Creates what is missing and renames what has another name; never deletes. The file is loaded
    completely or not at all; loading it again changes nothing. --dry-run shows what would happen.
    """
    content: str | Json
    if Path(file).is_dir():
        from crmctl.org.folder import OrgFolder
        from crmctl.org.organization import definitions_of

        content = definitions_of(OrgFolder(Path(file)))
    else:
        try:
            content = read_input(runtime, file).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError(f"{file} is not UTF-8 text", hint="save it as UTF-8") from None
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.definitions.definitions_file import load_document, parse_document, parse_sections

        document = parse_document(content) if isinstance(content, str) else parse_sections(content)
        summary = load_document(engine, document, clock=runtime.clock, ids=new_id, dry_run=runtime.dry_run)
    runtime.emitter.emit_result(summary, text="\n".join(f"{section:<12}{_counted(counts)}" for section, counts in summary.items()))


@app.command("dump", examples=["crmctl service dump > crm.yaml"])
def dump_definitions(runtime: Runtime, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """Print members, objects, reports, workflows and webhook endpoints as YAML."""
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.definitions.definitions_file import dump_sections
        from crmctl.values import yaml_text

        sections = engine.read(dump_sections)
    output_format = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else "yaml")
    if output_format == "yaml":
        runtime.streams.write_out(yaml_text.dumps(sections))
    else:
        runtime.emitter.emit_result(sections)


FORGES = {
    "github": ("OWNER/REPO", "[^/]+/[^/]+", "repository", "https://token.actions.githubusercontent.com", "https://api.github.com/repos"),
    "gitlab": ("GROUP/PROJECT", "[^/]+(/[^/]+)+", "project_path", "https://gitlab.com", "https://gitlab.com"),
}
"""The form of a path, the claim that holds it, the issuer, and the pages that show ids, by the option of the forge."""


@trusts.command(
    "add",
    writes=None,
    examples=[
        "crmctl service trust add deploy --github acme/crm-data --repository-id 123456 --workflow import.yml --scope records:write",
        "crmctl service trust add nightly --gitlab acme/crm-data --project-id 42 --claim ref_protected=true --scope records:read --ttl 30m",
    ],
)
def add_trust(
    runtime: Runtime,
    name: Annotated[str, argument("NAME", "Name of the trust, for the audit log.")],
    scopes: Annotated[list[str], option("--scope", "SCOPE", "Scope of the keys; repeatable.")],
    github: Annotated[str | None, option("--github", "OWNER/REPO", "Trust a GitHub repository.")] = None,
    repository_id: Annotated[str | None, option("--repository-id", "N", "Id of the GitHub repository.")] = None,
    workflow: Annotated[str | None, option("--workflow", "FILE", "Only this workflow file.")] = None,
    environment: Annotated[str | None, option("--environment", "NAME", "Only this environment.")] = None,
    gitlab: Annotated[str | None, option("--gitlab", "GROUP/PROJECT", "Trust a GitLab project.")] = None,
    project_id: Annotated[str | None, option("--project-id", "N", "Id of the GitLab project.")] = None,
    issuer: Annotated[str | None, option("--issuer", "URL", "Issuer of the tokens.")] = None,
    claims: Annotated[list[str] | None, option("--claim", "NAME=VALUE", "Further claim a token must have; repeatable.")] = None,
    ttl: Annotated[str, option("--ttl", "SPAN", "How long a key lasts: 5m to 24h.")] = "15m",
    dev: Annotated[bool, flag("--dev", "Allow an issuer on this machine, without TLS.")] = False,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Trust the tokens of an issuer with certain claims.

    Runs of pull requests are refused unless a --claim names event_name (GitHub) or pipeline_source (GitLab).
    """
    if (github is not None) + (gitlab is not None) > 1 or not (github or gitlab or issuer):
        raise UsageError("a trust needs one of --github, --gitlab and --issuer", hint="crmctl service trust add --help")
    expected: dict[str, str] = {}
    for forge, path, number, file in (("github", github, repository_id, workflow), ("gitlab", gitlab, project_id, None)):
        form, pattern, claim, address, pages = FORGES[forge]
        id_claim = f"{claim.removesuffix('_path')}_id"
        id_option = f"--{id_claim.replace('_', '-')}"
        if not path and (number or file):  # ignored, they would not limit the trust
            raise UsageError(f"{'--workflow' if file else id_option} needs --{forge}", hint="--claim NAME=VALUE limits any issuer's jobs")
        if path:
            if not re.fullmatch(pattern, path):
                raise UsageError(f"--{forge} must be {form}, not {path!r}")
            if number is None or not number.isdigit():
                raise UsageError(f"--{forge} needs {id_option} N: names can be taken over, ids cannot", hint=f"{pages}/{path} shows the id")
            issuer, expected = issuer or address, {claim: path, id_claim: number}
    expected |= {"workflow_ref": f"{github}/.github/workflows/{workflow}"} if github and workflow else {}
    expected |= {"environment": environment} if environment else {}
    expected |= {claim: str(value) for claim, value, _ in (named_value("--claim", text) for text in claims or ())}
    if issuer is None or not is_web_address(issuer, "https", *(["http"] if dev else [])):
        raise UsageError(f"--issuer must be an address with https, not {issuer!r}", hint="--dev allows http, for tests")
    with opened(runtime, data, database_url, writes=True) as engine:
        now = runtime.clock.now()
        trust = short_lived_keys.Trust(
            name=name, issuer=issuer, claims=expected, scopes=scopes, ttl=round(parse_expiry(ttl, now) - now), development=dev
        )
        added = write(runtime, engine, lambda tx: short_lived_keys.add_trust(tx, trust, ids=new_id, now=now))
    runtime.emitter.emit_item({"dryRun": True} | added if runtime.dry_run else added)


@trusts.command("list", examples=["crmctl service trust list"])
def list_trusts(runtime: Runtime, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """List the trusts with their claims and scopes."""
    with opened(runtime, data, database_url) as engine:
        rows = engine.read(short_lived_keys.list_trusts)
    runtime.emitter.emit_rows(rows, "trusts", first=("name", "issuer", "claims", "scopes", "ttl"))


@trusts.command("remove", writes=None, examples=["crmctl service trust remove nightly"])
def remove_trust(
    runtime: Runtime,
    name: Annotated[str, argument("NAME", "Name of the trust.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Remove a trust; its keys work until they expire."""
    with opened(runtime, data, database_url, writes=True) as engine:
        removed = write(runtime, engine, lambda tx: short_lived_keys.remove_trust(tx, name, now=runtime.clock.now()))
    runtime.done(removed, f"removed the trust {name}")


def _describe(key: ApiKey) -> Json:
    return key.wire() | {"scopes": sorted(SCOPES if key.scopes is None else key.scopes)}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count) or "none"


for name, group in (("keys", keys), ("members", members_app), ("trust", trusts)):
    app.add_group(name, group)
