"""Files and functions stay small enough to read in one go."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

from benchmarks.structure import arguments, functions, is_command

from tests.support.sources import PACKAGE, ROOT, python_files

OURS = f"{PACKAGE.relative_to(ROOT).as_posix()}/"
LONGEST_FILE = 399
LONGEST_FUNCTION = 49
IMPORTS = ("bulk/journal/", "bulk/match/", "bulk/read/", "bulk/rows/", "bulk/run/", "bulk/send/", "bulk/sources/")
IMPORTING = ("import_records", "import_preview", "apply_plan", "resume", "job_run", "requests", "results", "targets", "inspect_file")
"""What belongs to an import: these folders of bulk work, and these of its use cases."""


@dataclass(frozen=True)
class FunctionSize:
    file: str
    name: str
    lines: int
    arguments: int
    is_command: bool

    @property
    def is_ours(self) -> bool:
        return self.file.startswith(OURS)


@cache
def every_function() -> list[FunctionSize]:
    """Of the whole repository: to read it all takes seconds."""
    return [
        FunctionSize(path.relative_to(ROOT).as_posix(), one.name, (one.end_lineno or 0) - one.lineno + 1, arguments(one), is_command(one))
        for path in python_files()
        for one in functions(ast.parse(path.read_text()))
    ]


def test_every_python_file_is_shorter_than_400_lines() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in python_files()}
    assert len(lengths) > 40
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_function_is_shorter_than_50_lines() -> None:
    long = [f"{each.file}: {each.name}, {each.lines}" for each in every_function() if each.lines > LONGEST_FUNCTION]
    assert long == []


def test_no_function_of_an_import_takes_more_than_four_arguments() -> None:
    """But the client's call for a list and who stands for it, which take what the interface does."""
    names = (*IMPORTS, *(f"bulk/usecases/{name}.py" for name in IMPORTING), "cli/bulk_imports.py")
    known = [each for each in every_function() if each.is_ours]
    assert all(any(each.file.startswith(f"{OURS}{name}") for each in known) for name in names)
    of_imports = [each for each in known if each.file.removeprefix(OURS).startswith(names)]
    assert len(of_imports) > 800
    assert [f"{each.file}: {each.name}" for each in of_imports if each.arguments > 4 and each.name != "list_records"] == []


def test_fewer_than_two_in_a_hundred_functions_take_more_than_five_arguments() -> None:
    every = [each for each in every_function() if each.is_ours and not each.is_command]
    assert sum(each.arguments > 5 for each in every) < 0.02 * len(every)
