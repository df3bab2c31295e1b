"""Files and functions stay small enough to read in one go."""

from __future__ import annotations

import ast

from tests.support.sources import ROOT, python_files

LONGEST_FILE = 399
LONGEST_FUNCTION = 49


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
