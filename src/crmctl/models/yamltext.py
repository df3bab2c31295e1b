"""YAML text to plain values: the one place that reads YAML which people wrote for the command line."""

from __future__ import annotations

from typing import Any

from crmctl.errors import reason


def loads(text: str) -> Any:
    """Raises ValueError, whose text says why in words."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(reason(error)) from error
    except ValueError as error:  # 2026-02-30 is a date to YAML, and none to Python
        raise ValueError("a date or a number that does not exist") from error
