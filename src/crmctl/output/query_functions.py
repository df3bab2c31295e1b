"""The functions of --query: those of JMESPath, exact for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, localcontext
from typing import Any

from jmespath.functions import Functions, signature

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.numbers import MAX_DIGITS, Number, read_number

_BASE: Any = Functions  # the type stubs do not describe its metaclass


class ExactFunctions(_BASE):  # type: ignore[misc]
    """Treat numbers that a float cannot hold as numbers."""

    def _get_allowed_pytypes(self, types: Sequence[str]) -> tuple[list[str], list[Any]]:
        allowed, subtypes = super()._get_allowed_pytypes(types)
        return _with_decimals(allowed), [_with_decimals(subtype) for subtype in subtypes]

    def _convert_to_jmespath_type(self, pyobject: str) -> str:
        return "number" if pyobject == "Decimal" else str(super()._convert_to_jmespath_type(pyobject))

    @signature({"types": ["array-number"]})
    def _func_sum(self, arg: Sequence[Number]) -> Number:
        return _sum(arg)

    @signature({"types": ["array-number"]})
    def _func_avg(self, arg: Sequence[Number]) -> Number | None:
        return _sum(arg) / len(arg) if arg else None

    @signature({"types": []})
    def _func_to_number(self, arg: Any) -> Any:
        if isinstance(arg, Decimal):
            return arg
        with suppress(RejectedError):
            return read_number(arg) if isinstance(arg, str) else super()._func_to_number(arg)
        return None

    @signature({"types": []})
    def _func_type(self, arg: Any) -> Any:
        return "number" if isinstance(arg, Decimal) else super()._func_type(arg)

    @signature({"types": []})
    def _func_to_string(self, arg: Any) -> Any:
        return arg if isinstance(arg, str) else jsontext.dumps(arg)


def _with_decimals(names: Sequence[str]) -> list[str]:
    return [*names, "Decimal"] if "float" in names else list(names)


def _sum(numbers: Sequence[Number]) -> Number:
    """Without rounding on the way: 0.1 and 0.2 are 0.3."""
    with localcontext() as context:
        context.prec = 3 * MAX_DIGITS
        total = sum((Decimal(str(number)) for number in numbers), Decimal())
    if all(isinstance(number, int) for number in numbers):
        return int(total)
    near = float(total)
    return near if Decimal(str(near)) == total else total
