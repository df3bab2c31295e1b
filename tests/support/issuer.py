"""A local issuer of identity tokens: its metadata, its keys, and valid or forged tokens with any claims."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

RSA_KEY, OTHER_RSA = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC_KEY, ED_KEY = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, algorithm: str, key_id: str) -> dict[str, Any]:
    document = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**document, "kid": key_id, "use": "sig", "alg": algorithm}


def base64url(part: Any) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Issuer:
    """Serves at `url`; `reads` are the requested paths. /token answers like GitHub's service for jobs."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.reads: list[str] = []
        self.keys = [public_jwk(RSA_KEY, "RS256", "rsa"), public_jwk(EC_KEY, "ES256", "ec"), public_jwk(ED_KEY, "EdDSA", "ed")]
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.reads.append(self.path)
                document: Any = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                if self.path == "/keys":
                    document = {"keys": issuer.keys}
                if self.path.startswith("/token"):
                    document = {"value": issuer.token(parse_qs(urlsplit(self.path).query)["audience"][0])}
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def claims(self, audience: str, **changes: Any) -> dict[str, Any]:
        """Return claims that the test's trust accepts, with changes; None removes a claim."""
        now = int(self.now())
        claims = {
            "iss": self.url, "aud": audience, "iat": now, "nbf": now, "exp": now + 300, "jti": str(uuid.uuid4()),
            "repository": "acme/data", "repository_id": "123", "workflow_ref": "acme/data/.github/workflows/import.yml@refs/heads/main",
            "event_name": "push", "run_id": "77", "sha": "c0ffee",
        }  # fmt: skip
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(
        self, audience: str, *, key: Any = RSA_KEY, algorithm: str = "RS256", header: Mapping[str, Any] | None = None, **changes: Any
    ) -> str:
        key_id = {"RS256": "rsa", "ES256": "ec", "EdDSA": "ed"}.get(algorithm, "rsa")
        return jwt.encode(self.claims(audience, **changes), key, algorithm, headers={"kid": key_id, **(header or {})})

    def unsigned(self, audience: str, algorithm: str = "none", signature: bytes = b"") -> str:
        return f"{base64url({'alg': algorithm, 'kid': 'rsa', 'typ': 'JWT'})}.{base64url(self.claims(audience))}.{base64url(signature)}"

    def signed_with_public_key(self, audience: str, algorithm: str = "HS256") -> str:
        """Return a token whose HMAC secret is the issuer's public key."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        secret = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        text = f"{base64url({'alg': algorithm, 'kid': 'rsa'})}.{base64url(self.claims(audience))}"
        return f"{text}.{base64url(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
