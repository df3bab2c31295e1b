"""`crmctl auth`: log in, log out, and what a key may do."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, ExitCode, ForbiddenError, NotFoundError, RejectedError, ServiceError, UsageError
from crmctl.models.ids import suggestion
from crmctl.models.scopes import SCOPES

if TYPE_CHECKING:
    from crmctl.client.session import Session
    from crmctl.config.settings import Settings
    from crmctl.models.jsontext import Json


app = CommandApp("Log in, log out, see what a key may do.")


@app.command(
    "login",
    examples=[
        "crmctl auth login --base-url https://crm.example.com",
        "crmctl auth login --device",
        "crmctl auth login --profile ci --with-key < key.txt",
    ],
)
def login(
    runtime: Runtime,
    with_key: Annotated[bool, flag("--with-key", "Read the API key from stdin.")] = False,
    insecure_storage: Annotated[bool, flag("--insecure-storage", "Keep the key in a private file, without a keyring.")] = False,
    device: Annotated[bool, flag("--device", "Have a member approve a key for 12 hours in the console.")] = False,
    oidc: Annotated[bool, flag("--oidc", "Use the identity token of this CI job; nothing is stored but the profile.")] = False,
) -> None:
    """Check an API key with the service and store it for a profile.

    crmctl prompts for the key without echo, or reads it from stdin. Create keys in Organization Settings, Developers, or with
    crmctl service keys create. With --device, a member of a crmctl service approves a key with the member's role. With --oidc the service
    exchanges the token of GitHub, of GitLab (CRMCTL_ID_TOKEN) or in CRMCTL_ID_TOKEN_FILE for short-lived keys, as its trusts allow.
    """
    if (device and (with_key or oidc)) or (oidc and (with_key or insecure_storage)):
        raise UsageError(f"{'--device' if device else '--oidc'} needs no key", hint="leave the other options out")
    if oidc:
        document = log_in_by_token(runtime)
        runtime.done(document, f"profile {document['profile']} uses the identity token of this job at {document['baseUrl']}")
        return
    result = log_in(runtime, from_stdin=with_key, device=device, insecure=insecure_storage)
    runtime.done(result, f"logged in to {result['baseUrl']} as profile {result['profile']}; the key is in {_place(result['keySource'])}")


def _place(source: str) -> str:
    return "the system keyring" if source == "keyring" else source


@app.command("logout", examples=["crmctl auth logout", "crmctl auth logout --profile work"])
def logout(runtime: Runtime) -> None:
    """Remove the stored API key of a profile."""
    from crmctl.config.credentials import KEY_VARIABLE, remove_credential

    profile = runtime.settings.profile.value
    removed = remove_credential(profile, runtime.origin, runtime.paths)
    if runtime.environ.get(KEY_VARIABLE):
        runtime.messages.warn(f"{KEY_VARIABLE} is set and still used")
    message = f"removed the key of profile {profile} from {', '.join(_place(place) for place in removed)}"
    runtime.done({"profile": profile, "removed": removed}, message if removed else f"profile {profile} had no stored key")


@app.command("status", examples=["crmctl auth status", "crmctl auth status --scopes"])
def status(
    runtime: Runtime,
    scopes: Annotated[bool, flag("--scopes", "Test the permissions of the key with 16 small requests.")] = False,
) -> None:
    """Show the profile, the service and the key, with --scopes also its permissions."""
    credential = runtime.credential
    result: Json = {
        "profile": runtime.settings.profile.value,
        "baseUrl": runtime.settings.base_url.value,
        "origin": credential.origin,
        "keySource": credential.source,
        "key": credential.masked,
    }
    if scopes:
        granted: dict[str, bool] = {}
        with runtime.progress as progress:
            progress.start("asking what the key may do", len(PROBES), 1)
            for scope in PROBES:
                with suppress(ServiceError):
                    granted[scope] = may(runtime.crm.session, scope)
                progress.advance()
        result["scopes"] = [scope for scope, allowed in granted.items() if allowed]
        result["missingScopes"] = [scope for scope, allowed in granted.items() if allowed is False]
        result["unknownScopes"] = [scope for scope in PROBES if scope not in granted]
    runtime.emitter.emit_item(result)


@app.command("list", examples=["crmctl auth list", "crmctl auth list -o json"])
def list_profiles(runtime: Runtime) -> None:
    """List the profiles."""
    settings = runtime.settings
    rows = [
        {
            "profile": name,
            "baseUrl": values.get("base_url"),
            "isDefault": name == settings.file.default_profile,
            "isCurrent": name == settings.profile.value,
            "isProtected": bool(values.get("protected", False)),
        }
        for name, values in settings.file.profiles.items()
    ]
    runtime.emitter.emit_rows(rows, "profiles")


@app.command("switch", examples=["crmctl auth switch default"])
def switch(runtime: Runtime, profile: Annotated[str, argument("PROFILE", "Name of the profile.")]) -> None:
    """Make another profile the default."""
    file = runtime.settings.file
    if profile not in file.profiles:
        profiles = ", ".join(sorted(file.profiles)) or "none yet"
        raise UsageError(f"there is no profile {profile!r}", hint=f"known profiles: {profiles}", code="unknown_profile")
    file.set_value("default_profile", profile, None)
    runtime.done({"profile": profile, "baseUrl": file.profiles[profile].get("base_url")}, f"the default profile is now {profile}")


@app.command("can-i", examples=["crmctl auth can-i records:write", "crmctl auth can-i objects:write && echo allowed"])
def can_i(runtime: Runtime, scope: Annotated[str, argument("SCOPE", "Name of a scope, such as records:write.")]) -> int:
    """Print whether the key has a scope: yes or no, exit 0 or 4.

    crmctl tests it with a request that cannot change anything.
    """
    scope = scope.strip().lower()
    if scope not in SCOPES:
        hint = suggestion(scope, SCOPES, f"valid scopes: {', '.join(SCOPES)}")
        raise UsageError(f"there is no scope {scope!r}", hint=hint, code="unknown_scope")
    allowed = may(runtime.crm.session, scope)
    answer = "yes" if allowed else "no"
    is_plain = runtime.settings.output.value in (None, "table") and not (runtime.flags.get("query") or runtime.flags.get("fields"))
    if is_plain:
        runtime.streams.write_out(f"{answer}\n")  # also in a pipe: the word is what scripts compare
    else:
        runtime.emitter.emit_result({"scope": scope, "allowed": allowed, "answer": answer})
    return ExitCode.OK if allowed else ExitCode.DENIED


def log_in(runtime: Runtime, *, from_stdin: bool, insecure: bool, device: bool = False) -> Json:
    """Get, check and store the key and the profile's address; return `{"profile", "baseUrl", "keySource", "isDefault"}`.

    Raises DeniedError, and stores nothing, if the service refuses the key.
    """

    from crmctl.config.credentials import KEY_VARIABLE, Credential, check_key, check_keyring, store_credential

    settings = runtime.settings = _with_address(runtime)
    profile, origin = settings.profile.value, settings.require_origin()
    if not (from_stdin or insecure) and (device or runtime.prompter.can_ask):
        check_keyring(profile, origin)
    key = check_key(_wait_for_key(runtime) if device else _read_key(runtime, from_stdin=from_stdin))
    runtime.credential = Credential(key, "device" if device else "stdin" if from_stdin else "prompt", origin)
    _check_login(runtime)
    stored = store_credential(profile, origin, key, runtime.paths, insecure=insecure)
    if insecure:
        runtime.messages.warn(f"the key is stored unencrypted in {stored.source}; only your user can read it")
    if runtime.environ.get(KEY_VARIABLE):
        runtime.messages.warn(f"{KEY_VARIABLE} is set and wins over the stored key")
    return _store_profile(settings, stored.source)


def log_in_by_token(runtime: Runtime) -> Json:
    """Exchange the job's token, and let the profile do so. Raises DeniedError, and stores nothing, if the service refuses it."""
    from crmctl.client.issued_keys import OIDC, OidcKeys

    settings = runtime.settings = _with_address(runtime)
    runtime.credential = OidcKeys(settings, runtime.environ, runtime.paths, runtime.clock).renew()
    _check_login(runtime)
    return _store_profile(settings, OIDC, auth=OIDC)


def _store_profile(settings: Settings, source: str, **more: str) -> Json:
    """Write the profile, the default one if it is the first, and return the result of a login."""
    profile, file = settings.profile.value, settings.file
    for name, value in {"base_url": settings.require_base_url(), **more}.items():
        file = file.set_value(name, value, profile)
    if file.default_profile is None:
        file = file.set_value("default_profile", profile, None)
    is_default = file.default_profile == profile
    return {"profile": profile, "baseUrl": settings.base_url.value, "keySource": source, "isDefault": is_default}


@app.command("explain", examples=["crmctl auth explain"])
def explain(runtime: Runtime) -> None:
    """Show the claims of this job's identity token, without its signature.

    With a key with full access, crmctl compares them with each trust of an embedded service and names the first claim that differs.
    """
    from crmctl.client.issued_keys import OidcKeys, claims_of
    from crmctl.config.credentials import require_credential
    from crmctl.service.store.short_lived_keys import Trust

    token, source = OidcKeys(runtime.settings, runtime.environ, runtime.paths, runtime.clock).identity_token()
    document: Json = {"source": source, "audience": runtime.settings.base_url.value, "claims": claims_of(token, source)}
    with suppress(CrmctlError, ValueError, KeyError, TypeError):  # the comparison is an addition
        # Not the key of `auth = "oidc"`: it would use the token up, and may not read the trusts.
        runtime.credential = require_credential(runtime.settings, runtime.environ, runtime.paths)
        trusts = [Trust.model_validate(wire) for wire in runtime.crm.session.request("GET", "/trusts").json()["trusts"]]
        document["trusts"] = [{"name": trust.name, "problem": trust.mismatch(document["claims"])} for trust in trusts]
    runtime.emitter.emit_result(document)


def _with_address(runtime: Runtime) -> Settings:
    """Return the settings, with a prompted address if there is none; the profile may be new."""
    from crmctl.config.settings import Sourced, parse_base_url

    settings = replace(runtime.settings, profile=Sourced(runtime.settings.profile.value, "auth login"))
    if settings.base_url.value is not None:
        return settings
    address = runtime.prompter.text("Base URL of the service", flag="--base-url URL")
    try:
        return replace(settings, base_url=Sourced(parse_base_url(address), "prompt"))
    except ValueError as error:
        raise UsageError(f"the base URL {error}, not {address!r}") from error


def _read_key(runtime: Runtime, *, from_stdin: bool) -> str:
    if not from_stdin:
        return runtime.prompter.secret(f"API key for {runtime.settings.base_url.value}", flag="--with-key and the key on stdin")
    if runtime.streams.stdin_is_terminal:
        runtime.messages.note("reading the key from stdin; without --with-key it is asked for unseen")
    return runtime.streams.stdin.readline()


def _wait_for_key(runtime: Runtime) -> str:
    from crmctl.client.issued_keys import log_in_on_device

    def show(page: str, code: str) -> None:
        runtime.messages.progress(f"open {page} and approve the code {code}")
        runtime.browse(page)

    return log_in_on_device(runtime.settings, runtime.environ, runtime.clock, show)


def _check_login(runtime: Runtime) -> None:
    """Raise the error of `prove_key`, with a hint for a login."""
    try:
        prove_key(runtime.crm.session)
    except CrmctlError as error:
        if error.status == 401:
            error.hint = "nothing was stored; check that the whole key was pasted and that it has not expired or been revoked"
        elif error.status == 404:
            error.hint = f"nothing was stored; is {runtime.settings.base_url.value} the address of a Customer Records Service?"
        raise


NIL = "00000000-0000-0000-0000-000000000000"


PROBES: dict[str, tuple[str, str, Any]] = {
    "objects:read": ("GET", "/objects", None),
    "objects:write": ("PATCH", f"/objects/{NIL}", {}),
    "records:read": ("GET", f"/objects/{NIL}/records?limit=1", None),
    "records:write": ("PATCH", f"/objects/{NIL}/records/{NIL}", {"data": {}}),
    "attributes:read": ("GET", f"/objects/{NIL}/attributes", None),
    "attributes:write": ("PATCH", f"/objects/{NIL}/attributes/{NIL}", {}),
    "activities:read": ("GET", "/activities?limit=1", None),
    "activities:write": ("PATCH", f"/activities/{NIL}", {}),
    "reports:read": ("GET", "/reports", None),
    "reports:run": ("POST", f"/reports/{NIL}/run", None),
    "workflows:read": ("GET", "/workflows", None),
    "workflows:write": ("PATCH", f"/workflows/{NIL}", {}),
    "workflows:run": ("POST", f"/workflows/{NIL}/run", None),
    "members:read": ("GET", "/members", None),
    "files:write": ("POST", "/files/upload-url", {}),
    "webhooks:manage": ("GET", "/webhooks", None),
}
"""A request that tests each scope: method, path and body. A list must succeed; any other may also be answered with 404."""


def may(session: Session, scope: str) -> bool:
    """Whether the key has the scope.

    Raises DeniedError for an invalid key, ServiceError if the answer does not tell, RateLimitedError, NetworkError.
    """
    from crmctl.client.answers import WEB_PAGE

    method, path, body = PROBES[scope]
    is_list = method == "GET" and NIL not in path
    try:
        answer = session.request(method, path, body=body)
        if not answer.is_empty:
            answer.json()
        return True
    except (ForbiddenError, NotFoundError, RejectedError, ServiceError) as error:
        if isinstance(error, ForbiddenError) and error.hint != WEB_PAGE:
            return False
        if isinstance(error, NotFoundError | RejectedError) and not (is_list or error.status in (405, 408) or error.hint):
            return True  # the service looked for what does not exist
        text = f"cannot tell whether the key has {scope}: {error.message}"
        hint = error.hint or "this service may not offer what the scope is for"
        raise ServiceError(text, hint=hint, code="cannot_tell", status=error.status) from error


def prove_key(session: Session) -> None:
    """Return if the service accepts the key: a read succeeds or lacks a scope.

    Raises DeniedError if it does not, ServiceError if this is no Customer Records Service.
    """
    try:
        session.request("GET", "/objects").json()
    except ForbiddenError as error:
        if error.code != "insufficient_scope" and not error.required_scope:
            raise
