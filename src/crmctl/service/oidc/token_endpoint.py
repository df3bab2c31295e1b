"""Short-lived API keys for an issuer's token (RFC 8693) or for a device that a member approves (RFC 8628), and the metadata of RFC 8414.

The only importer of PyJWT.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.http.edge import client_address
from crmctl.service.http.endpoint import NamedRoute, read_body
from crmctl.service.http.json_answers import JsonAnswer, rate_limited
from crmctl.service.store import device_logins, keys, logs, oidc_trusts
from crmctl.service.store.oidc_trusts import Trust
from crmctl.service.store.tx import Stamp, Tx

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
TOKEN_TYPES = ("urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt")
MOST_BODY = 32 * 1024
WAIT = 20.0
"""Seconds that a request of a device may wait for its turn."""

UNCACHED = {"Cache-Control": "no-store"}
AT_ONCE = 2
"""Exchanges at once: issuers that do not answer must not hold up requests."""

MOST_NOTED = 60
"""Refusals noted in a minute."""

NOTED_CLAIMS = ("repository", "repository_id", "project_path", "project_id", "run_id", "pipeline_id", "sha", "ref", "actor", "user_login")

MOST_LOGINS, LOGINS_SECONDS = 30, 900
"""Logins of devices that one address may start in this time."""


def router(context: Context) -> Router:
    exchange = TokenExchange(context)

    async def token(request: Request) -> Response:
        form = await _read_form(context, request)
        if form.get("grant_type") == DEVICE:
            stamp: Stamp = {"ids": context.ids, "now": context.clock.now()}
            document = await _write(context, request, lambda tx: device_logins.poll_login(tx, form.get("device_code", ""), **stamp))
            status = 400 if "error" in document else 200
        else:
            status, document = await anyio.to_thread.run_sync(exchange.answer, form, limiter=exchange.limiter)
        return JsonAnswer(document, status, UNCACHED)

    async def metadata(_request: Request) -> Response:
        address = context.settings.address
        document = {
            "issuer": address,
            "token_endpoint": f"{address}/oauth/token",
            "device_authorization_endpoint": f"{address}/oauth/device_authorization",
            "grant_types_supported": [EXCHANGE, DEVICE],
            "token_endpoint_auth_methods_supported": ["none"],
            "response_types_supported": [],
        }
        return JsonAnswer(document)

    return Router(
        [
            NamedRoute("/oauth/token", token, methods=["POST"]),
            NamedRoute("/oauth/device_authorization", partial(_start_login, context), methods=["POST"]),
            NamedRoute("/.well-known/oauth-authorization-server", metadata, methods=["GET"]),
        ]
    )


async def _read_form(context: Context, request: Request) -> dict[str, str]:
    raw = await read_body(request, MOST_BODY, context.settings.body_timeout)
    return {name: values[-1] for name, values in parse_qs(raw.decode("latin-1")).items()}


async def _write(context: Context, request: Request, change: Callable[[Tx], Json]) -> Json:
    async with context.work.writes.place(client_address(request.scope) or "", WAIT):
        return await context.work.run(lambda: context.engine.write(change, by=logs.SERVICE))


async def _start_login(context: Context, request: Request) -> Response:
    """Start the login of a device. Raises a 429 for an address that starts too many."""
    form, now, address = await _read_form(context, request), context.clock.now(), client_address(request.scope) or ""
    if not form.get("client_id"):
        return JsonAnswer({"error": "invalid_request"}, 400, UNCACHED)
    host = form.get("host", "") if re.fullmatch("[A-Za-z0-9._-]{1,100}", form.get("host", "")) else "unknown"
    windows = context.engine.rate_windows()
    state = await anyio.to_thread.run_sync(lambda: windows.take(f"device from {address}", MOST_LOGINS, LOGINS_SECONDS, now))
    if not state.allowed:
        raise rate_limited(state.reset - now, "too many logins were started from this address")

    def start(tx: Tx) -> Json:
        device_code, user_code = device_logins.start_login(tx, host, address, now=now)
        page = f"{context.settings.address}/console/device"
        document = {"device_code": device_code, "user_code": user_code, "verification_uri": page}
        document |= {"verification_uri_complete": f"{page}?code={user_code}"}
        return document | {"expires_in": device_logins.WAIT_SECONDS, "interval": device_logins.INTERVAL}

    return JsonAnswer(await _write(context, request, start), 200, UNCACHED)


class TokenExchange:
    """Answers exchanges. The caller of a refused one learns `invalid_grant` and nothing else."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys = IssuerKeys(self._read, context.clock.monotonic)

    @cached_property
    def limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(AT_ONCE)

    def answer(self, form: dict[str, str]) -> tuple[int, Json]:
        if form.get("grant_type") != EXCHANGE:
            return 400, {"error": "unsupported_grant_type"}
        if not form.get("subject_token") or form.get("subject_token_type") not in TOKEN_TYPES:
            return 400, {"error": "invalid_request"}
        try:
            return 200, self._exchange(form["subject_token"])
        except TokenRefused as refused:
            self._note_refusal(str(refused))
            return 400, {"error": "invalid_grant"}

    def _exchange(self, token: str) -> Json:
        context = self._context
        now = context.clock.now()
        trusts = [Trust.of(wire) for wire in context.engine.read(oidc_trusts.list_trusts)]
        trust, expires_at, claims = check_token(token, context.settings.address, trusts, self._keys, now=now)
        run = str(claims.get("run_id") or claims.get("pipeline_id") or "")
        about = {name: str(claims[name])[:200] for name in NOTED_CLAIMS if name in claims}

        def exchange(tx: Tx) -> str:
            if not oidc_trusts.use_token(tx, trust.issuer, claims["jti"], expires_at, now=now):
                raise TokenRefused("it was used before")
            name = f"{trust.name} {run}"[:200] if run.isprintable() and run else trust.name
            key, secret = keys.create_key(
                tx, name=name, scopes=frozenset(trust.scopes), expires_at=now + trust.ttl, ids=context.ids, now=now
            )
            logs.note(tx, "token.exchanged", key.id, {"trust": trust.name, **about}, now=now)
            return secret

        secret = context.engine.write(exchange, by=logs.SERVICE)
        kind = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        return device_logins.key_answer(secret, trust.ttl, trust.scopes) | kind

    def _read(self, address: str) -> bytes:
        """Read an issuer's document: through TLS, or from this machine for a trust of development."""
        from crmctl.service.background import LOOPBACK
        from crmctl.service.outbound.caller import Caller
        from crmctl.service.outbound.guard import CallFailedError, TargetGuard

        trusts = self._context.engine.read(oidc_trusts.list_trusts)
        is_local = any(trust["development"] and address.startswith(trust["issuer"].rstrip("/") + "/") for trust in trusts)
        if not is_local and not address.startswith("https://"):
            raise CallFailedError("the address has no TLS")
        return Caller(TargetGuard(LOOPBACK if is_local else ())).get(address)

    def _note_refusal(self, rule: str) -> None:
        engine, now = self._context.engine, self._context.clock.now()
        with suppress(Unavailable):
            if engine.rate_windows().take("refused tokens", MOST_NOTED, 60, now).allowed:
                engine.write(lambda tx: logs.note(tx, "token.refused", "", {"rule": rule[:500]}, now=now), by=logs.SERVICE)


class TokenRefused(Exception):
    """The message names the rule that failed. It goes to the audit log, never to the caller."""


KEPT_SECONDS = 3600.0
AGAIN_SECONDS = 60.0
"""An unknown key id reads the keys of its issuer again at most this often."""

Read = Callable[[str], bytes]
"""Returns the body of a GET; raises CallFailedError."""


class IssuerKeys:
    """Keeps the keys of each issuer for an hour; thread-safe."""

    def __init__(self, read: Read, monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[Json]]] = {}

    def find(self, issuer: str, key_id: str) -> Json:
        with self._lock:
            at, keys = self._kept.get(issuer, (-KEPT_SECONDS, []))
            matches = [key for key in keys if key.get("kid") == key_id]
            age = self._monotonic() - at
            if age >= KEPT_SECONDS or (not matches and age >= AGAIN_SECONDS):
                # Noted before the reading, so that an issuer that does not answer is not asked again at once.
                self._kept[issuer] = (self._monotonic(), [] if age >= KEPT_SECONDS else keys)
                keys = self._fetch(issuer)
                self._kept[issuer] = (self._monotonic(), keys)
                matches = [key for key in keys if key.get("kid") == key_id]
        if len(matches) != 1:
            raise TokenRefused("the issuer has no key with this id")
        return matches[0]

    def _fetch(self, issuer: str) -> list[Json]:
        from crmctl.service.outbound.guard import CallFailedError

        try:
            about = self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            address = about.get("jwks_uri")
            if about.get("issuer") != issuer or not isinstance(address, str) or urlsplit(address).scheme != urlsplit(issuer).scheme:
                raise TokenRefused("the issuer's metadata does not fit it")
            keys = self._document(address).get("keys")
        except (CallFailedError, ValueError) as error:
            raise TokenRefused(f"the issuer's keys cannot be read: {reason(error)}") from error
        return [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []

    def _document(self, address: str) -> Json:
        document: Any = jsontext.loads(self._read(address))
        return document if isinstance(document, dict) else {}


ALGORITHMS = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""The accepted signatures with the type of their keys."""

LEEWAY = 60
LONGEST = 16 * 1024
LATEST = 10**12
"""Times from here on are no Unix seconds."""

_UNCHECKED = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "sub")}
_OPTIONS: Any = {"require": ["iss", "aud", "exp", "iat", "jti"], **_UNCHECKED}
"""PyJWT checks the signature and most claims, but times by the machine's clock, and an audience among others is enough for it."""


def check_token(
    token: str, audience: str, trusts: Sequence[Trust], keys: IssuerKeys, *, now: float
) -> tuple[Trust, float, Mapping[str, Any]]:
    """Return the trust that accepts a token, the end of the token in Unix seconds, and its claims, among them `jti`. Raises TokenRefused
    naming the rule that failed."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefused("it is no signed token") from None
    if len(token) > LONGEST:
        raise TokenRefused("it is too long")
    candidates = [trust for trust in trusts if trust.issuer == issuer]
    if not candidates:
        raise TokenRefused("no trust names its issuer")
    algorithm = str(header.get("alg"))
    if algorithm not in ALGORITHMS or "crit" in header:
        raise TokenRefused("its algorithm is not accepted")
    key = keys.find(candidates[0].issuer, header.get("kid") or "")
    if key.get("kty") != ALGORITHMS[algorithm] or key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
        raise TokenRefused("its key is for another algorithm")
    try:
        public = jwt.PyJWK(key, algorithm).key
        claims = jwt.decode(token, public, algorithms=[algorithm], issuer=candidates[0].issuer, options=_OPTIONS)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise TokenRefused(reason(error)) from error
    if claims["aud"] not in (audience, [audience]):
        raise TokenRefused("its audience is another service")
    expires_at = _check_times(claims, now)
    problems = [trust.mismatch(claims) for trust in candidates]
    if None not in problems:
        raise TokenRefused("; ".join(map(str, problems)))
    return candidates[problems.index(None)], expires_at, claims


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    """Return when the token ends, with the leeway. Raises TokenRefused."""
    expires, issued, begins = times = [claims.get(name, now) for name in ("exp", "iat", "nbf")]
    if not all(isinstance(time, int | float) and not isinstance(time, bool) and abs(time) < LATEST for time in times):
        raise TokenRefused("its exp, iat or nbf is no time")
    if expires + LEEWAY <= now:
        raise TokenRefused("it has expired")
    if max(issued, begins) - LEEWAY > now:
        raise TokenRefused("it is not valid yet")
    return float(expires + LEEWAY)
