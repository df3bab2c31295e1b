"""Which certificates are trusted. There is no way to trust all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.errors import ConfigError, reason

if TYPE_CHECKING:
    import ssl

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where other programs look for a certificate bundle, in order of precedence."""


def trust(ca_bundle: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> ssl.SSLContext:
    """`--ca-bundle`, else the usual variables, else the system's store, else the bundled list where a system has none.

    Raises ConfigError for a bundle that cannot be read.
    """
    import ssl

    bundle = ca_bundle or next((environ[name] for name in VARIABLES if environ.get(name)), None)
    if bundle:
        return _trust_only(Path(bundle))
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not context.get_ca_certs() and not paths.cafile and not paths.capath:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def trust_nobody() -> ssl.SSLContext:
    """For plain http, where reading a certificate store would take longer than a request to a local service."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _trust_only(path: Path) -> ssl.SSLContext:
    import ssl

    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read the CA bundle {path}: {reason(error)}",
            code="ca_bundle",
            hint="--ca-bundle takes a PEM file or a directory",
        ) from error
