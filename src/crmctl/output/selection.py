"""--fields and --query: which part of an item is wanted. Works on plain values; the formats come after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.fieldpaths import Path
from crmctl.models.nearest import suggestion
from crmctl.output.views import View

SHOWN_EXPRESSION = 200
SHOWN_VALUE = 60
"""Characters of an expression, and of a value that it met, that a message shows."""

_TYPES = {"str": "string", "dict": "object", "list": "array", "int": "number", "float": "number", "bool": "boolean", "NoneType": "null"}


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
        every = list(dict.fromkeys([*view.fields, *valid]))
        raise UsageError(
            f"unknown field{'s' if len(unknown) > 1 else ''} for {view.noun}: {', '.join(unknown)}",
            hint=suggestion(unknown[0], every, f"valid fields: {', '.join(every)}"),
            code="unknown_field",
            details={"unknown": unknown, "valid": every},
        )
    return chosen


def compile_query(expression: str) -> Callable[[Any], Any]:
    """A JMESPath expression as a function. Both compiling and applying raise UsageError for a wrong expression."""
    import jmespath  # only --query pays for it
    from jmespath.exceptions import JMESPathError

    from crmctl.output.query_functions import ExactFunctions

    def wrong(error: Exception) -> UsageError:
        shown = repr(_cut(expression, SHOWN_EXPRESSION))
        return UsageError(f"--query {shown}: {_why(error)}", hint="the language is described at https://jmespath.org", code="bad_query")

    try:
        compiled = jmespath.compile(expression)
    except (JMESPathError, ValueError) as error:
        raise wrong(error) from error

    options = jmespath.Options(custom_functions=ExactFunctions())

    def apply(document: Any) -> Any:
        try:
            return compiled.search(document, options)
        except (JMESPathError, ValueError, TypeError, ArithmeticError) as error:
            raise wrong(error) from error

    return apply


def _why(error: Exception) -> str:
    """What is wrong with an expression, and where. The library's own texts repeat it, and print the whole value that does not fit."""
    from jmespath.exceptions import ArityError, IncompleteExpressionError, JMESPathError, JMESPathTypeError, LexerError, ParseError

    if isinstance(error, JMESPathTypeError):
        wanted = " or ".join(error.expected_types)
        actual = _TYPES.get(error.actual_type, error.actual_type)
        return f"{error.function_name}() takes {wanted}, not {actual}: {_cut(_as_json(error.current_value), SHOWN_VALUE)}"
    if isinstance(error, IncompleteExpressionError):
        return "the expression is not complete"
    if isinstance(error, LexerError):
        return f"{_cut(str(error.message), SHOWN_VALUE)}, at character {error.lexer_position + 1}"
    if isinstance(error, ParseError) and not isinstance(error, ArityError):
        return f"unexpected {_cut(str(error.token_value), SHOWN_VALUE)!r} at character {error.lex_position + 1}"
    if isinstance(error, JMESPathError):
        return _cut(" ".join(str(error).split()), SHOWN_EXPRESSION)
    return "values of different kinds are compared" if isinstance(error, TypeError) else "a number that nothing can be done with"


def _as_json(value: Any) -> str:
    try:
        return jsontext.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"
