"""`crmctl service trust`: which tokens of other issuers get API keys."""

from __future__ import annotations

import re
from typing import Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.commands.serve import DatabaseOption, DataOption
from crmctl.cli.options import argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.cli.service_data import opened, write
from crmctl.cli.targets import named_value
from crmctl.config.settings import is_web_address
from crmctl.errors import UsageError
from crmctl.service.context import new_id
from crmctl.service.store import short_lived_keys
from crmctl.service.store.keys import parse_expiry

trusts = CommandApp("Let CI jobs exchange their identity for short-lived API keys.")

GITHUB, GITLAB = "https://token.actions.githubusercontent.com", "https://gitlab.com"


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
    expected = {}
    if github:
        number = _id_of("--github OWNER/REPO", github, "--repository-id", repository_id, f"https://api.github.com/repos/{github}")
        expected = {"repository": github, "repository_id": number}
        expected |= {"workflow_ref": f"{github}/.github/workflows/{workflow}"} if workflow else {}
    elif gitlab:
        number = _id_of("--gitlab GROUP/PROJECT", gitlab, "--project-id", project_id, f"https://gitlab.com/{gitlab}")
        expected = {"project_path": gitlab, "project_id": number}
    expected |= {"environment": environment} if environment else {}
    expected |= {claim: str(value) for claim, value, _ in (named_value("--claim", text) for text in claims or ())}
    address = issuer or (GITHUB if github else GITLAB)
    if not is_web_address(address, "https", *(["http"] if dev else [])):
        raise UsageError(f"--issuer must be an address with https, not {address!r}", hint="--dev allows http, for tests")
    with opened(runtime, data, database_url, writes=True) as engine:
        now = runtime.clock.now()
        trust = short_lived_keys.Trust(
            name=name, issuer=address, claims=expected, scopes=scopes, ttl=round(parse_expiry(ttl, now) - now), development=dev
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


def _id_of(usage: str, path: str, id_option: str, number: str | None, page: str) -> str:
    """Return the id of a repository. Raises UsageError for a malformed path, and without an id naming the page that shows it."""
    option, form = usage.split(" ")
    if not re.fullmatch("[^/]+/[^/]+" if option == "--github" else "[^/]+(/[^/]+)+", path):
        raise UsageError(f"{option} must be {form}, not {path!r}")
    if number is None or not number.isdigit():
        raise UsageError(f"{option} needs {id_option} N: names can be taken over, ids cannot", hint=f"{page} shows the id")
    return number
