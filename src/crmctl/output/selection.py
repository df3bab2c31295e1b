"""--fields and --query: which part of an item is wanted. Works on plain values; the formats come after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crmctl.errors import UsageError
from crmctl.models.fieldpaths import Path
from crmctl.output.views import View


def choose_fields(names: Sequence[str], view: View, sample: Mapping[str, Any] | None = None) -> dict[str, Path]:
    """The path of every wanted field, in the wanted order. A name may go deeper with dots (`user.email`).

    A field that the service sent beyond its specification counts when the sample item has it. Raises UsageError listing the valid names.
    """
    valid = {**{name: (name,) for name in sample or {}}, **view.fields}
    chosen: dict[str, Path] = {}
    unknown = []
    for name in names:
        head, *rest = name.split(".")
        if name in valid:
            chosen[name] = valid[name]
        elif head in valid:
            chosen[name] = (*valid[head], *rest)
        else:
            unknown.append(name)
    if unknown:
        listed = ", ".join(dict.fromkeys([*view.fields, *valid]))
        raise UsageError(
            f"unknown field{'s' if len(unknown) > 1 else ''} for {view.noun}: {', '.join(unknown)}",
            hint=f"valid fields: {listed}",
            code="unknown_field",
            details={"unknown": unknown, "valid": list(dict.fromkeys([*view.fields, *valid]))},
        )
    return chosen


def compile_query(expression: str) -> Callable[[Any], Any]:
    """A JMESPath expression as a function. Both compiling and applying raise UsageError for a wrong expression."""
    import jmespath  # only --query pays for it
    from jmespath.exceptions import JMESPathError

    def wrong(error: Exception) -> UsageError:
        reason = " ".join(str(error).split())
        return UsageError(f"--query {expression!r}: {reason}", hint="the language is described at https://jmespath.org", code="bad_query")

    try:
        compiled = jmespath.compile(expression)
    except (JMESPathError, ValueError) as error:
        raise wrong(error) from error

    def apply(document: Any) -> Any:
        try:
            return compiled.search(document)
        except (JMESPathError, ValueError, TypeError, ArithmeticError) as error:
            raise wrong(error) from error

    return apply
