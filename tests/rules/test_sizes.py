"""Files and functions stay small enough to read in one go."""

from __future__ import annotations

import ast

from benchmarks.structure import arguments, functions, is_command

from tests.support.sources import PACKAGE, ROOT, package_files, python_files

LONGEST_FILE = 399
LONGEST_FUNCTION = 49
IMPORTS = ("bulk/journal/", "bulk/match/", "bulk/read/", "bulk/rows/", "bulk/run/", "bulk/send/", "bulk/sources/")
IMPORTING = ("import_records", "apply_plan", "resume", "job_run", "requests", "results", "targets", "inspect_file")
"""What belongs to an import: these folders of bulk work, and these of its use cases."""


def test_every_python_file_is_shorter_than_400_lines() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in python_files()}
    assert len(lengths) > 40
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_function_is_shorter_than_50_lines() -> None:
    too_long = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    too_long[f"{path.relative_to(ROOT)}:{node.name}"] = length
    assert too_long == {}


def test_no_function_of_an_import_takes_more_than_four_arguments() -> None:
    """But the client's call for a list and who stands for it, which take what the interface does."""
    names = (*IMPORTS, *(f"bulk/usecases/{name}.py" for name in IMPORTING), "cli/bulk_imports.py")
    known = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in package_files()}
    assert all(any(name.startswith(each) for name in known) for each in names)
    of_imports = [(name, one) for name, tree in known.items() if name.startswith(names) for one in functions(tree)]
    assert len(of_imports) > 800
    assert [f"{name}: {one.name}" for name, one in of_imports if arguments(one) > 4 and one.name != "list_records"] == []


def test_fewer_than_two_in_a_hundred_functions_take_more_than_five_arguments() -> None:
    every = [one for path in package_files() for one in functions(ast.parse(path.read_text())) if not is_command(one)]
    assert sum(arguments(one) > 5 for one in every) < 0.02 * len(every)
