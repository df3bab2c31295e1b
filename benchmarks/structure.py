"""Figures of the source tree: lines, functions with many arguments, imports inside functions, names that stand for more than one thing.

`python benchmarks/structure.py [CHECKOUT ...]`: a column for each checkout, this one when none is named. Reads files only.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

NOUNS = {"mapping", "paging", "routing"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def arguments(function: Function) -> int:
    """How many a caller may give; not the object itself."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_command(function: Function) -> bool:
    """Whether its arguments are the options of a command."""
    calls = [decorator.func for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr == "command" for call in calls)


def deferred(tree: ast.AST) -> int:
    """Imports of our own modules inside functions."""
    nodes = {id(node): node for function in functions(tree) for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    return sum((node.module or "").startswith("crmctl") for node in nodes.values())


def figures(root: Path) -> dict[str, int]:
    """The figures of one checkout, by what they count."""
    package = root / "src" / "crmctl"
    texts = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    every = [function for tree in trees.values() for function in functions(tree)]
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    outside = {name: tree for name, tree in trees.items() if not name.startswith(("cli/commands/", "cli/registry"))}
    return {
        "lines": sum(text.count("\n") for text in texts.values()),
        "files": len([name for name in texts if not name.endswith("__init__.py")]),
        "functions": len(every),
        "functions of more than four arguments": len([one for one in every if arguments(one) > 4]),
        "functions of more than five, commands left out": len([one for one in every if arguments(one) > 5 and not is_command(one)]),
        "imports of our own inside functions": sum(map(deferred, trees.values())),
        "the same outside cli": sum(deferred(tree) for name, tree in outside.items() if not name.startswith(("cli/", "main"))),
        "class names of more than one class": len([name for name, count in classes.items() if count > 1]),
        "modules named by a gerund": len([name for name in texts if name.endswith("ing.py") and Path(name).stem not in NOUNS]),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py")),
    }


def main(arguments: list[str]) -> int:
    columns = [figures(Path(name)) for name in arguments or [str(Path(__file__).parents[1])]]
    for what in columns[0]:
        print("|".join(["", f" {what} ", *(f" {column[what]:,} " for column in columns), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
