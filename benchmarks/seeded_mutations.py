"""What the tests of a package are worth: one-line mutations drawn by a seed, each in a copy of the source; the share that the tests notice.

`python benchmarks/seeded_mutations.py --package crmctl.bulk.journal --count 20 --seed 1`; `--list` only shows them.
Ends with 1 when fewer are noticed than the target says.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = 0.85
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".hypothesis")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
ELSEWHERE = {
    "crmctl.bulk.journal": ["tests/bulk/run/test_lost_requests.py"],
    "crmctl.bulk.undo": ["tests/bulk/usecases/test_undo.py"],
    "crmctl.schema": ["tests/cli/test_schema.py", "tests/cli/test_schema_commands.py"],
    "crmctl.service.definitions": ["tests/contract/test_definitions.py"],
    "crmctl.service.routes": ["tests/contract"],
}
"""What is tested through what is built on it; beside the package's own folder of tests, where it has one."""

UNTOUCHED = {"annotation", "returns", "decorator_list", "bases", "type_params"}
"""Parts of the syntax that say what something is, not what it does."""


SHORTCUT = "a short cut: without it the same comes out, later"
MEMORY = "how much is remembered of what can be worked out again"
EQUIVALENT = {
    ("models/typed_text.py", "10", "11"): SHORTCUT,
    ("models/typed_text.py", "len(text) == 10", "(len(text) != 10)"): SHORTCUT,
    ("models/numbers.py", "len(text) < _EXACT_TEXT", "(len(text) <= _EXACT_TEXT)"): SHORTCUT,
    ("models/numbers.py", "len(stripped) <= _EXACT_TEXT", "(len(stripped) < _EXACT_TEXT)"): SHORTCUT,
    ("bulk/rows/record_builder.py", "len(cell.memo) < MEMO_CELLS", "(len(cell.memo) <= MEMO_CELLS)"): MEMORY,
    ("bulk/rows/record_builder.py", "len(text) <= MEMO_LENGTH", "(len(text) < MEMO_LENGTH)"): MEMORY,
    ("bulk/rows/row_encoder.py", "len(self) < MEMO_CELLS", "(len(self) <= MEMO_CELLS)"): MEMORY,
    ("bulk/rows/row_encoder.py", "len(text) <= MEMO_LENGTH", "(len(text) < MEMO_LENGTH)"): MEMORY,
}
"""Mutations after which the program still does the same, each looked at by a person, with the reason. They are shown and not counted."""


@dataclass(frozen=True, order=True)
class Mutant:
    """In `file` (below the root) the bytes from `start` to `end`, which are in `line`, become `new`."""

    file: str
    start: int
    end: int
    new: str
    line: int
    old: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def equivalence(self) -> str | None:
        """Why nothing changes, or None."""
        return EQUIVALENT.get((self.file.removeprefix("src/crmctl/"), self.old, self.new))

    def describe(self) -> str:
        return f"{self.file}:{self.line}: `{self.old}` becomes `{self.new}`"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutation of one file that changes one line."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(len(line) for line in lines[:number]) for number in range(len(lines))]
    for node, new in _changes(ast.parse(source)):
        if node.lineno == node.end_lineno:
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.lineno - 1] + (node.end_col_offset or 0)
            yield Mutant(path.relative_to(ROOT).as_posix(), begin, end, new, node.lineno, source[begin:end].decode())


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Places below `node` with what they become. Nothing inside f-strings, whose parts older Pythons place wrongly, and no bounds."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or name in UNTOUCHED or _is_bound(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield from ((child, new) for new in _replacements(child))
            yield from _changes(child)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            yield _with(node, ops=[SWAPPED[type(operator)]()])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in SWAPPED and not _is_text(node):
            yield _with(node, op=SWAPPED[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None"


def _is_bound(node: ast.AST) -> bool:
    """Whether numbers get a name in capitals: a limit that is one larger is another choice, and a test of it would only repeat it."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
            names, values = [name], [value]
        case ast.Assign(targets=[ast.Tuple(elts=[*targets])], value=ast.Tuple(elts=[*values])):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return False
    return all(name.isupper() for name in names) and all(isinstance(one, ast.Constant) and type(one.value) is int for one in values)


def _with(node: ast.expr, **changed: object) -> str:
    other = copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})"


def _is_text(node: ast.AST) -> bool:
    """Whether a sum joins texts: its difference would only be an error."""
    parts = (getattr(node, "left", None), getattr(node, "right", None))
    return any(isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str)) for part in parts)


def draw(package: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a package or module, the same for the same source and seed."""
    place = ROOT / "src" / Path(*package.split("."))
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    every = sorted(mutant for file in files for mutant in mutants_of(file))
    return random.Random(f"{seed} {package}").sample(every, min(count, len(every)))


def tests_of(package: str) -> list[str]:
    """The folder of the tests that lies where the package does, or that of the nearest package around it, and the tests elsewhere."""
    place = Path("tests", *package.split(".")[1:])
    while True:
        own = [place.as_posix()] if (ROOT / place).is_dir() else []
        if tests := own + ELSEWHERE.get(".".join(["crmctl", *place.parts[1:]]), []):
            return tests
        place = place.parent


def nearest_first(tests: Sequence[str], mutant: Mutant) -> list[str]:
    """The files of the tests, those first that import the mutated module: there most mutations are noticed, and one failure is enough."""
    module = ".".join(Path(mutant.file).with_suffix("").parts[1:])
    places = [ROOT / place for place in tests]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    return [file.relative_to(ROOT).as_posix() for file in sorted(files, key=lambda file: module not in file.read_text())]


def run_tests(folder: Path, tests: Sequence[str], seconds: float) -> bool:
    """Whether all pass in time. A mutant may never end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    try:
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def survivors(mutants: Sequence[Mutant], tests: Sequence[str], most_seconds: float) -> list[Mutant]:
    """Those that no test notices. Ends the program when the tests fail without any mutation."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "copy"
        shutil.copytree(ROOT, place, ignore=LEFT_OUT)
        began = time.monotonic()
        if not run_tests(place, tests, most_seconds):
            raise SystemExit(f"{' '.join(tests)}: they do not pass as they are")
        limit = min(most_seconds, 60 + 3 * (time.monotonic() - began))
        unnoticed = []
        for mutant in mutants:
            if mutant.equivalence is not None:
                print(f"the same  {mutant.describe()}: {mutant.equivalence}", flush=True)
                continue
            file = place / mutant.file
            source = file.read_bytes()
            file.write_bytes(mutant.apply(source))
            survived = run_tests(place, nearest_first(tests, mutant), limit)
            file.write_bytes(source)
            print(f"{'SURVIVED' if survived else 'noticed '}  {mutant.describe()}", flush=True)
            if survived:
                unnoticed.append(mutant)
        return unnoticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", action="append", required=True, help="a package or module, such as crmctl.bulk.journal; repeatable")
    parser.add_argument("--count", type=int, default=20, help="mutations of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", help="instead of the folder of tests that lies where the package does")
    parser.add_argument("--seconds", type=float, default=900, help="the most that one run of the tests may take")
    parser.add_argument("--list", action="store_true", help="show the mutations and test nothing")
    given = parser.parse_args()
    lines, total, missed = ["| package | mutations | noticed |", "|---|---|---|"], 0, 0
    for package in given.package:
        mutants = draw(package, given.count, given.seed)
        if given.list:
            print(*(mutant.describe() for mutant in mutants), sep="\n")
            continue
        left = len(survivors(mutants, given.tests or tests_of(package), given.seconds))
        counted = sum(mutant.equivalence is None for mutant in mutants)
        total, missed = total + counted, missed + left
        lines.append(f"| `{package}` | {counted} | {1 - left / max(counted, 1):.0%} |")
    if given.list:
        return 0
    print(*lines, f"{1 - missed / max(total, 1):.0%} noticed, target {TARGET:.0%}", sep="\n")
    return 0 if missed <= total * (1 - TARGET) else 1


if __name__ == "__main__":
    sys.exit(main())
