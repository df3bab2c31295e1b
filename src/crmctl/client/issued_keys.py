"""API keys that a service issues: for the identity token of a CI job, renewed while crmctl runs, and for a login that a member approves."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import KEY_VARIABLE, Credential, check_key, require_credential
from crmctl.config.settings import Paths, Settings, is_loopback, write_private
from crmctl.errors import CrmctlError, DeniedError, RejectedError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json

OIDC = "oidc"
SHARE = 2 / 3  # of its life, after which a key is renewed
FILE_VARIABLE, TOKEN_VARIABLE = "CRMCTL_ID_TOKEN_FILE", "CRMCTL_ID_TOKEN"
GITHUB_URL, GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
FORM_TYPE = ("Content-Type", "application/x-www-form-urlencoded")
REFUSALS = (400, 401, 403, 404, 405)  # of a token or code, or by a service without such an endpoint
_OAUTH = "urn:ietf:params:oauth"
WAITING = ("authorization_pending", "slow_down")
_EXCHANGE = {"grant_type": f"{_OAUTH}:grant-type:token-exchange", "subject_token_type": f"{_OAUTH}:token-type:id_token"}


def find_key(settings: Settings, environ: Mapping[str, str], paths: Paths, clock: Clock | None = None) -> Credential:
    """Return the key of a profile: CRMCTL_API_KEY, else by its `auth`. Raises what each way raises."""
    if settings.auth.value != OIDC or environ.get(KEY_VARIABLE, "").strip():
        return require_credential(settings, environ, paths)
    return OidcKeys(settings, environ, paths, clock or SystemClock()).current()


def claims_of(token: str, source: str) -> Json:
    """Return the claims of a token, unchecked. Raises UsageError naming its source."""
    try:
        part = token.split(".")[1]
        claims = jsontext.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError) as error:
        raise UsageError(f"{source} holds no identity token") from error
    return claims if isinstance(claims, dict) else {}


class OidcKeys:
    """Exchanges identity tokens for keys. A key is kept in a private file until it is renewed, because a token works once."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], paths: Paths, clock: Clock) -> None:
        self._environ = environ
        self._send = partial(_send, settings, environ)
        self._clock = clock
        self.base_url, self.origin = _trusted_address(settings), settings.require_origin()
        name = hashlib.sha256(f"{settings.profile.value} {self.base_url}".encode()).hexdigest()[:16]
        self._file: Path = paths.cache / f"oidc-{name}.json"
        # Another job of the same runner has another identity, and must not get this one's key.
        secret = environ.get(FILE_VARIABLE) or environ.get(GITHUB_TOKEN) or environ.get(TOKEN_VARIABLE, "")
        self._identity = secret and hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()

    def current(self) -> Credential:
        """Return the kept key, or a new one. Raises DeniedError."""
        with suppress(OSError, ValueError, KeyError, TypeError, CrmctlError):
            kept = jsontext.loads(self._file.read_text(encoding="utf-8"))
            if self._identity in ("", kept["identity"]) and self._clock.now() < (renew_at := float(kept["renewAt"])):
                return Credential(check_key(kept["key"]), OIDC, self.origin, renew=self.renew, renew_at=renew_at)
        return self.renew()

    def renew(self) -> Credential:
        """Exchange a token for a new key and keep it. Raises DeniedError."""
        form = {**_EXCHANGE, "subject_token": self.identity_token()[0]}
        try:
            answer = self._send(f"{self.base_url}/oauth/token", ("access_token", "expires_in"), form)
        except RejectedError as error:
            problem = f"{self.origin} does not accept the identity token of this job ({error.code})"
            hint = "crmctl auth explain shows its claims; the audit log of the service names the rule"
            raise DeniedError(problem, hint=hint, code="invalid_grant") from error
        key = str(answer["access_token"])
        renew_at = self._clock.now() + SHARE * _seconds(answer["expires_in"], 0)
        write_private(self._file, jsontext.dumps({"key": key, "renewAt": renew_at, "identity": self._identity}))
        return Credential(key, OIDC, self.origin, renew=self.renew, renew_at=renew_at)

    def identity_token(self) -> tuple[str, str]:
        """Return the job's token and its source: CRMCTL_ID_TOKEN_FILE, GitHub's service, or CRMCTL_ID_TOKEN. Raises DeniedError."""
        environ = self._environ
        if path := environ.get(FILE_VARIABLE):
            try:
                return Path(path).read_text(encoding="utf-8").strip(), FILE_VARIABLE
            except (OSError, UnicodeDecodeError) as error:
                raise DeniedError(f"cannot read {FILE_VARIABLE} {path}: {reason(error)}", code="no_identity") from error
        if (url := environ.get(GITHUB_URL)) and (bearer := environ.get(GITHUB_TOKEN)):
            address = f"{url}{'&' if '?' in url else '?'}audience={quote(self.base_url, safe='')}"
            with suppress(RejectedError):  # which would count as a refusal of what the job sends
                return str(self._send(address, ("value",), bearer=bearer)["value"]), GITHUB_URL
        if token := environ.get(TOKEN_VARIABLE, "").strip():
            return token, TOKEN_VARIABLE
        hint = f"GitHub: permissions: {{id-token: write}}; GitLab: id_tokens: {{{TOKEN_VARIABLE}: {{aud: ...}}}}; else {FILE_VARIABLE}"
        raise DeniedError("this job has no identity token", hint=hint, code="no_identity")


def log_in_on_device(settings: Settings, environ: Mapping[str, str], clock: Clock, show: Callable[[str, str], None]) -> str:
    """Return the key of a login that a member approves in the console. `show` tells the user the address and the code. Raises DeniedError
    for one that is denied or not answered in time, RejectedError if the service has no such logins."""
    base_url, send = _trusted_address(settings), partial(_send, settings, environ)
    form = {"client_id": "crmctl", "host": platform.node()}
    try:
        login = send(f"{base_url}/oauth/device_authorization", ("device_code", "user_code", "verification_uri"), form)
    except RejectedError as error:
        raise RejectedError(f"{base_url} has no device logins", hint="crmctl auth login asks for a key", code="no_device_login") from error
    show(str(login.get("verification_uri_complete") or login["verification_uri"]), str(login["user_code"]))
    wait, until = _seconds(login.get("interval"), 5), clock.monotonic() + _seconds(login.get("expires_in"), 600)
    form = {"client_id": "crmctl", "grant_type": f"{_OAUTH}:grant-type:device_code", "device_code": str(login["device_code"])}
    while clock.monotonic() < until:
        clock.sleep(max(wait, 0.1))
        try:
            return str(send(f"{base_url}/oauth/token", ("access_token",), form)["access_token"])
        except RejectedError as error:
            if error.code not in WAITING:
                problem = "the login was denied" if error.code == "access_denied" else f"the login failed ({error.code})"
                raise DeniedError(problem, hint="nothing was stored; start again", code=error.code) from error
            wait += 5 * (error.code == "slow_down")
        except CrmctlError:
            # The answer may have held the key, which cannot be asked for again: the service then refuses the next poll.
            wait *= 2
    raise DeniedError("nobody approved the login in time", hint="nothing was stored; start again", code="expired_token")


def _seconds(value: Any, default: float) -> float:
    """Return a service's number of seconds, the default if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 86_400 else default


def _trusted_address(settings: Settings) -> str:
    """Return the base URL. Raises UsageError for one without TLS on another machine."""
    base_url = settings.require_base_url()
    if not base_url.startswith("https://") and not is_loopback(base_url):
        raise UsageError(f"tokens and keys are not sent without TLS to {settings.require_origin()}", hint="use https://")
    return base_url


def _send(
    settings: Settings, environ: Mapping[str, str], url: str, names: Sequence[str], form: Mapping[str, str] | None = None, bearer: str = ""
) -> Json:
    """Return the answer to a form, or to a GET with a bearer's token; it has these fields. Raises RejectedError for a refusal,
    NetworkError, RateLimitedError, and ServiceError for any other answer."""
    from crmctl.client.answers import Answer, refusal, unreadable
    from crmctl.client.transport import Request, send_once

    own, body = (FORM_TYPE, urlencode(form).encode()) if form else (("Authorization", f"bearer {bearer}"), None)
    request = Request("POST" if form else "GET", url, (("Accept", "application/json"), own), body, timeout=30.0)
    response = send_once(request, ca_bundle=settings.ca_bundle.value, environ=environ)
    answer = Answer(response.status, response.headers, response.body)
    if not answer.ok:
        error = refusal(answer)
        raise RejectedError(error.message, code=error.code, status=error.status) if answer.status in REFUSALS else error
    document = answer.json()
    if not isinstance(document, dict) or any(document.get(name) in (None, "") for name in names):
        raise unreadable(answer)
    return document
