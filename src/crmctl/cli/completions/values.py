"""What completion scripts ask crmctl for: profiles and, from the cache, slugs and names. Reads files only: no request, key or prompt."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PLAIN = re.compile(r"[\w.\-]+")
"""Shells expand what they are offered, so whatever is not a plain word is left out."""

NAMES = ("reports", "workflows")
WORDS = re.compile(r"[\w.\-]+(?: [\w.\-]+)*")
"""Names may hold single blanks: the scripts quote them."""


def print_values(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """`KIND [OBJECT [PROFILE]]`: one value a line. Prints nothing when anything is wrong: a shell is waiting at a half-typed line."""
    kind, object_slug, profile = (*(word.strip() for word in arguments), "", "", "")[:3]
    with contextlib.suppress(Exception):
        sys.stdout.write("".join(f"{value}\n" for value in values(kind, object_slug, profile, environ)))


def values(kind: str, object_slug: str, profile: str, environ: Mapping[str, str]) -> list[str]:
    """The values of one kind (`profiles objects attributes fields assignments reports workflows`), sorted as they are kept."""
    from crmctl.config.paths import Paths
    from crmctl.config.settings import Flags, load_settings

    paths = Paths.from_environment(environ)
    settings = load_settings(environ, Flags(profile=profile or None), paths)
    if kind == "profiles":
        return sorted(settings.file.profiles)
    if kind in NAMES:
        return _names(kind, paths.cache, settings.profile.value, settings.require_origin())
    slugs = _slugs(object_slug if kind != "objects" else None, paths.cache, settings.profile.value, settings.require_origin())
    if kind == "fields" and slugs:
        return ["id", *slugs, "createdAt", "updatedAt"]
    return [f"{slug}=" for slug in slugs] if kind == "assignments" else slugs


def _slugs(object_slug: str | None, cache: Path, profile: str, origin: str) -> list[str]:
    """Slugs of the objects, or of the attributes of one; old knowledge is better than none while somebody types."""
    from crmctl.client.schema_cache import OBJECTS, SchemaCache
    from crmctl.clock import SystemClock

    kept = SchemaCache(cache, profile, origin, SystemClock())
    items = kept.get(OBJECTS, math.inf) or []
    if object_slug is not None:
        identity = next((str(item.get("id")) for item in items if object_slug in (item.get("slug"), item.get("id"))), object_slug)
        items = kept.get(identity, math.inf) or []
    slugs = (item.get("slug") for item in items if item.get("isActive") is not False)
    return [slug for slug in slugs if isinstance(slug, str) and PLAIN.fullmatch(slug)]


def _names(kind: str, cache: Path, profile: str, origin: str) -> list[str]:
    """Names that one thing alone has; only a name that is unique can be used."""
    from crmctl.client.schema_cache import SchemaCache
    from crmctl.clock import SystemClock

    names = [item.get("name") for item in SchemaCache(cache, profile, origin, SystemClock()).get(kind, math.inf) or []]
    return [name for name in names if isinstance(name, str) and WORDS.fullmatch(name) and names.count(name) == 1]
