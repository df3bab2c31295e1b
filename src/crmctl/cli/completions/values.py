"""What completion scripts ask crmctl for: profiles and, from the cache, slugs and names. Reads files only: no request, key or prompt."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crmctl.client.schema_cache import Items

PLAIN = re.compile(r"[\w.\-]+")
"""Shells expand what they are offered, so whatever is not a plain word is left out."""

NAMES = ("reports", "workflows")
WORDS = re.compile(r"[\w.\-]+(?: [\w.\-]+)*")
"""Names may hold single blanks: the scripts quote them."""


def print_values(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """`KIND [OBJECT [PROFILE [TYPED]]]`: one value a line. Prints nothing when anything is wrong: a shell is waiting."""
    kind, object_slug, profile, typed = (*arguments, "", "", "", "")[:4]
    with contextlib.suppress(Exception):
        found = values(kind, object_slug.strip(), profile.strip(), environ, typed)
        sys.stdout.write("".join(f"{value}\n" for value in found))


def values(kind: str, object_slug: str, profile: str, environ: Mapping[str, str], typed: str = "") -> list[str]:
    """The values of one kind (`profiles objects attributes fields assignments conditions reports workflows jobs settings scopes events`),
    sorted as they are kept. `typed`: the word so far; behind `slug=` come the options of a select."""
    if kind in ("settings", "scopes", "events"):
        return _fixed(kind)
    from crmctl.config.paths import Paths
    from crmctl.config.settings import Flags, load_settings

    paths = Paths.from_environment(environ)
    if kind == "jobs":
        return sorted(
            (folder.name for folder in (paths.state / "jobs").iterdir() if PLAIN.fullmatch(folder.name) and folder.is_dir()), reverse=True
        )
    settings = load_settings(environ, Flags(profile=profile or None), paths)
    if kind == "profiles":
        return sorted(settings.file.profiles)
    if kind in NAMES:
        return _names(kind, paths.cache, settings.profile.value, settings.require_origin())
    place = (paths.cache, settings.profile.value, settings.require_origin())
    if kind == "conditions":
        from crmctl.cli.completions.conditions import complete_condition

        return complete_condition(typed, _items(object_slug, *place))
    if kind == "assignments" and "=" in typed:
        return _options(object_slug, typed.strip("'\"").partition("=")[0], *place)
    slugs = _slugs(object_slug if kind != "objects" else None, *place)
    if kind == "fields" and slugs:
        return ["id", *slugs, "createdAt", "updatedAt"]
    return [f"{slug}=" for slug in slugs] if kind == "assignments" else slugs


def _fixed(kind: str) -> list[str]:
    """What is the same everywhere."""
    if kind == "settings":
        from crmctl.config.keys import KEYS

        return list(KEYS)
    if kind == "scopes":
        from crmctl.models.scopes import SCOPES

        return list(SCOPES)
    from crmctl.models.webhooks import EVENT_TYPES

    return list(EVENT_TYPES)


def _options(object_slug: str, slug: str, cache: Path, profile: str, origin: str) -> list[str]:
    """`slug=option` for every option of a select."""
    found = next((item for item in _items(object_slug, cache, profile, origin) if item.get("slug") == slug.removesuffix("!")), {})
    options = (found.get("config") or {}).get("options") or []
    return [f"{slug}={option}" for option in options if isinstance(option, str) and PLAIN.fullmatch(option)]


def _slugs(object_slug: str | None, cache: Path, profile: str, origin: str) -> list[str]:
    """Slugs of the objects, or of the attributes of one; old knowledge is better than none while somebody types."""
    slugs = (item.get("slug") for item in _items(object_slug, cache, profile, origin) if item.get("isActive") is not False)
    return [slug for slug in slugs if isinstance(slug, str) and PLAIN.fullmatch(slug)]


def _items(object_slug: str | None, cache: Path, profile: str, origin: str) -> Items:
    from crmctl.client.schema_cache import OBJECTS, SchemaCache
    from crmctl.clock import SystemClock

    kept = SchemaCache(cache, profile, origin, SystemClock())
    items = kept.get(OBJECTS, math.inf) or []
    if object_slug is not None:
        identity = next((str(item.get("id")) for item in items if object_slug in (item.get("slug"), item.get("id"))), object_slug)
        items = kept.get(identity, math.inf) or []
    return items


def _names(kind: str, cache: Path, profile: str, origin: str) -> list[str]:
    """Names that one thing alone has; only a name that is unique can be used."""
    from crmctl.client.schema_cache import SchemaCache
    from crmctl.clock import SystemClock

    names = [item.get("name") for item in SchemaCache(cache, profile, origin, SystemClock()).get(kind, math.inf) or []]
    return [name for name in names if isinstance(name, str) and WORDS.fullmatch(name) and names.count(name) == 1]
