"""`POST /oauth/token`: exchange an issuer's token for a short-lived API key (RFC 8693), and the metadata of RFC 8414."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.endpoint import NamedRoute, read_body
from crmctl.service.oidc.token_check import IssuerKeys, TokenRefused, check_token
from crmctl.service.store import keys, logs, oidc_trusts
from crmctl.service.store.oidc_trusts import Trust
from crmctl.service.store.tx import Tx

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
TOKEN_TYPES = ("urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt")
MOST_BODY = 32 * 1024
AT_ONCE = 2
"""Exchanges at once: issuers that do not answer must not hold up requests."""

MOST_NOTED = 60
"""Refusals noted in a minute."""

NOTED_CLAIMS = ("repository", "repository_id", "project_path", "project_id", "run_id", "pipeline_id", "sha", "ref", "actor", "user_login")


def router(context: Context) -> Router:
    exchange = TokenExchange(context)

    async def token(request: Request) -> Response:
        raw = await read_body(request, MOST_BODY, context.settings.body_timeout)
        form = {name: values[-1] for name, values in parse_qs(raw.decode("latin-1")).items()}
        status, document = await anyio.to_thread.run_sync(exchange.answer, form, limiter=exchange.limiter)
        return JsonAnswer(document, status, {"Cache-Control": "no-store"})

    async def metadata(_request: Request) -> Response:
        address = context.settings.address
        return JsonAnswer(
            {
                "issuer": address,
                "token_endpoint": f"{address}/oauth/token",
                "grant_types_supported": [EXCHANGE],
                "token_endpoint_auth_methods_supported": ["none"],
                "response_types_supported": [],
            }
        )

    well_known = "/.well-known/oauth-authorization-server"
    return Router([NamedRoute("/oauth/token", token, methods=["POST"]), NamedRoute(well_known, metadata, methods=["GET"])])


class TokenExchange:
    """Answers exchanges. The caller of a refused one learns `invalid_grant` and nothing else."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys = IssuerKeys(self._read, context.clock.monotonic)
        self._refused: tuple[int, int] = (0, 0)

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
        run = claims.get("run_id") or claims.get("pipeline_id")
        about = {name: str(claims[name])[:200] for name in NOTED_CLAIMS if name in claims}

        def exchange(tx: Tx) -> str:
            if not oidc_trusts.use_token(tx, trust.issuer, claims["jti"], expires_at, now=now):
                raise TokenRefused("it was used before")
            name = f"{trust.name} {run}"[:200] if run else trust.name
            key, secret = keys.create_key(
                tx, name=name, scopes=frozenset(trust.scopes), expires_at=now + trust.ttl, ids=context.ids, now=now
            )
            logs.note(tx, "token.exchanged", key.id, {"trust": trust.name, **about}, now=now)
            return secret

        secret = context.engine.write(exchange, by=logs.SERVICE)
        return {
            "access_token": secret,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": trust.ttl,
            "scope": " ".join(sorted(trust.scopes)),
        }

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
        now = self._context.clock.now()
        minute, count = self._refused
        self._refused = (int(now // 60), count + 1 if minute == int(now // 60) else 1)
        if self._refused[1] > MOST_NOTED:
            return

        def write(tx: Any) -> None:
            logs.note(tx, "token.refused", "", {"rule": rule[:500]}, now=now)

        try:
            self._context.engine.write(write, by=logs.SERVICE)
        except Unavailable:
            return
