"""Templates in the values of a workflow's actions: `{{ record.data.email }}`, in a sandbox.

Expressions only: no statements, no calls, and only what cannot make much out of little, so that time and size are bounded by the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest

MOST_SOURCE = 10_000
"""Characters of one template."""

MOST_OUTPUT = 100_000
"""Characters of one rendered text."""

_FILTERS = (
    *("default", "d", "lower", "upper", "title", "capitalize", "trim", "length", "count", "first", "last"),
    *("round", "int", "float", "string", "abs", "truncate", "urlencode"),
)
_TESTS = ("defined", "undefined", "none", "string", "number", "boolean")
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice),
    *(nodes.Filter, nodes.Test, nodes.Keyword, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos),
)
_ONE_EXPRESSION = re.compile(r"\s*\{\{[-+]?(.*?)[-+]?\}\}\s*", re.DOTALL)


class _Environment(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The member of an object of the data, never an attribute of a Python value."""
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        is_index = isinstance(obj, str | list) and isinstance(argument, int | slice)
        if isinstance(obj, Mapping) or is_index:
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return obj if isinstance(obj, Undefined) else self.undefined(hint=f"{argument!r} is undefined")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        left, right = _number(left), _number(right)
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            left, right = Decimal(str(left)), Decimal(str(right))
        return super().call_binop(context, operator, left, right)


def check_template(text: str) -> None:
    """Raises BadRequest for what is no template."""
    _compiled(text)


def check_templates(value: Any, where: str) -> None:
    """Every template in a value of any shape. Raises BadRequest naming where."""
    for path, text in _texts(value, where):
        try:
            check_template(text)
        except BadRequest as fault:
            raise BadRequest(f"{path}: {fault.message}", {"field": path}) from None


def is_template(value: Any) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


def render(value: Any, scope: Mapping[str, Any], where: str) -> Any:
    """The value with every template in it filled in. A text that is one expression and nothing else becomes what that gives, of any type.

    Raises BadRequest naming where, also for a name that is not there.
    """
    if isinstance(value, dict):
        return {key: render(item, scope, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, scope, f"{where}[{position}]") for position, item in enumerate(value)]
    if not is_template(value):
        return value
    try:
        return _render(value, scope)
    except BadRequest as fault:
        raise BadRequest(f"{where}: {fault.message}", {"field": where}) from None
    except (TemplateError, ArithmeticError, TypeError, ValueError, LookupError, RecursionError) as problem:
        raise BadRequest(f"{where}: {_why(problem)}", {"field": where}) from None


def _why(problem: Exception) -> str:
    """The library's own errors name what is missing; Python's tell of its inside."""
    if isinstance(problem, TemplateError):
        return str(problem)
    return "a division by zero" if isinstance(problem, ZeroDivisionError) else "what is written there cannot be done with these values"


def _render(text: str, scope: Mapping[str, Any]) -> Any:
    source = _compiled(text)
    if source is not None:
        value = _ENVIRONMENT.compile_expression(source, undefined_to_none=False)(**scope)
        if isinstance(value, Undefined):
            str(value)  # raises, naming what is missing
        return value
    pieces: list[str] = []
    size = 0
    for piece in _ENVIRONMENT.from_string(text).generate(**scope):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_OUTPUT:
            raise BadRequest(f"the text would be longer than {MOST_OUTPUT:,} characters")
    return "".join(pieces)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> str | None:
    """Checks a template. The source of its expression when it is one expression and nothing else."""
    if len(text) > MOST_SOURCE:
        raise BadRequest(f"a template must have at most {MOST_SOURCE:,} characters")
    try:
        tree = _ENVIRONMENT.parse(text)
        strange = next((node for node in tree.find_all(nodes.Node) if not isinstance(node, _NODES)), None)
        if strange is None:
            _ENVIRONMENT.from_string(text)
    except (TemplateError, RecursionError) as problem:
        raise BadRequest(f"the template cannot be read: {_why(problem)}") from None
    if strange is not None:
        raise BadRequest(f"a template takes simple expressions only, not {type(strange).__name__.lower()}")
    match = _ONE_EXPRESSION.fullmatch(text)
    outputs = [piece for node in tree.body if isinstance(node, nodes.Output) for piece in node.nodes]
    visible = [piece for piece in outputs if not (isinstance(piece, nodes.TemplateData) and not piece.data.strip())]
    return match[1] if match and len(visible) == 1 else None


def _texts(value: Any, where: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{where}.{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _texts(item, f"{where}[{position}]")
    elif is_template(value):
        yield where, value


def _number(value: Any) -> int | float | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise BadRequest("a template calculates with numbers only")
    return value


def _shown(value: Any) -> Any:
    """A value inside a text: null is nothing, everything but text is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str | Undefined) else jsontext.dumps(value)


def _join(values: Any, separator: str = "") -> str:
    parts = [str(_shown(value)) for value in values] if isinstance(values, list) else [str(_shown(values))]
    if sum(map(len, parts)) + len(separator) * len(parts) > MOST_OUTPUT:
        raise BadRequest(f"the text would be longer than {MOST_OUTPUT:,} characters")
    return separator.join(parts)


def _replace(text: Any, old: str, new: str) -> str:
    source = str(_shown(text))
    if len(source) + (source.count(old) * len(new)) > MOST_OUTPUT:
        raise BadRequest(f"the text would be longer than {MOST_OUTPUT:,} characters")
    return source.replace(old, new)


def _make_environment() -> _Environment:
    environment = _Environment(undefined=StrictUndefined, autoescape=False, finalize=_shown, keep_trailing_newline=True)
    environment.globals.clear()
    environment.filters = {name: FILTERS[name] for name in _FILTERS}
    environment.filters |= {"join": _join, "replace": _replace, "tojson": jsontext.dumps}
    environment.tests = {name: TESTS[name] for name in _TESTS}
    return environment


_ENVIRONMENT = _make_environment()
