"""Files and functions stay small enough to read in one go."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from benchmarks.structure import arguments, functions, is_command

from tests.support.sources import PACKAGE, ROOT, python_files

LONGEST_FILE = 600
LONGEST_FUNCTION = 60


def test_no_python_file_is_longer_than_600_lines() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in python_files()}
    assert len(lengths) > 40
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    assert {one.name: one.lines for one in _functions() if one.lines > LONGEST_FUNCTION} == {}


def test_fewer_than_two_in_a_hundred_functions_take_more_than_five_arguments() -> None:
    """Commands do not count, because their options are their arguments."""
    counts = [one.arguments for one in _functions() if one.is_packaged and not one.is_command]
    assert sum(count > 5 for count in counts) < 0.02 * len(counts)


class Shape(NamedTuple):
    name: str
    lines: int
    arguments: int
    is_command: bool
    is_packaged: bool


@cache
def _functions() -> list[Shape]:
    """Return every function of the repository; parse each file once."""
    return [
        Shape(
            f"{path.relative_to(ROOT)}: {function.name}",
            (function.end_lineno or 0) - function.lineno + 1,
            arguments(function),
            is_command(function),
            path.is_relative_to(PACKAGE),
        )
        for path in python_files()
        for function in functions(ast.parse(path.read_text()))
    ]
