"""Users never see the raw text of a library's exception: `errors.reason` translates it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.sources import PACKAGE, ROOT, package_files

TELLING = {"args", "errors", "msg", "strerror"}
"""Attributes that hold an exception's text."""

OUR_TEXTS = {
    "cli/commands:_with_address": "config's own text about an address",
    "cli:load": "the objects in a circle of references",
    "cli:run": "a bug: the text helps to report it",
    "config:_check": "config's own text about a value",
    "config:_parsed": "config's own text about a value",
    "dedupe:_odd": "the key of a KeyError, which is a field of the plan",
    "dedupe:reason_of": "looked up in a table of our texts, or jsontext's own text",
    "files:_end_of_flawed": "jsontext's own text about JSON that breaks a rule other than syntax",
    "files:_failure": "looked up in a table of our texts",
    "files:json_problem": "jsontext's own text about a duplicate key",
    "client:_explain": "the text distinguishes two failures; no message contains it",
    "mirror:_explained": "SQLite's text about the user's own SQL, which people look up",
    "models:parse": "names the place, not the problem",
    "output:_why": "JMESPath's text about the user's own expression",
    "values:problems_of": "error kinds are looked up in a table of our texts",
    "service/console:actions_of": "our own text about a field",
    "service/console:changes": "our own text about a field",
    "service/definitions:load_yaml": "yaml_text's own text, through reason",
    "service/outbound:send": "kinds of failed calls, as the delivery log stores them",
    "service/store:_short": "one word of PostgreSQL's, for the single error that is shown",
    "plan:_read_file": "the place of a mistake",
    "service/oidc:check_token": "the name of a claim",
    "service/testdouble:parse_rule": "our own text about a word",
    "service/workflows:_why": "Jinja's text about the user's own template",
    "service/workflows:check_cron": "the library's text about the user's own schedule",
    "service:check_shape": "error kinds are looked up in a table of our texts",
    "service:tell": "the log of the operator",
    "values:_json_inside": "jsontext's own text about a duplicate key",
}
"""Package and function, with the reason why users may see this text."""


def test_a_caught_exception_speaks_through_reason() -> None:
    telling = {name for path in package_files() if path != PACKAGE / "errors.py" for name in _tellers(path)}
    assert telling - OUR_TEXTS.keys() == set(), "use errors.reason, or state in OUR_TEXTS why the text is our own"


@cache
def _our_classes() -> frozenset[str]:
    return frozenset(name for path in package_files() for name in re.findall(r"^\s*class (\w+)", path.read_text(), re.MULTILINE))


def _tellers(path: Path) -> Iterator[str]:
    """Yield the functions of a file that put a foreign exception into a text."""
    tree = ast.parse(path.read_text())
    package = path.relative_to(PACKAGE).parent.as_posix()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            parameters = {argument.arg for argument in function.args.args if _foreign(argument.annotation, missing=False)}
            if parameters and _tells(function, parameters):
                yield f"{package}:{function.name}"
            for handler in ast.walk(function):
                foreign = isinstance(handler, ast.ExceptHandler) and _foreign(handler.type, missing=True)
                if foreign and handler.name and _tells(handler, {handler.name}):
                    yield f"{package}:{function.name}"


def _foreign(kinds: ast.expr | None, *, missing: bool) -> bool:
    """Whether at least one of the classes belongs to a library or to Python."""
    if kinds is None:
        return missing
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(kinds) if isinstance(node, ast.Attribute | ast.Name)
    }
    exceptions = {one for one in names if one.endswith(("Error", "Exception", "failures")) or one in ("Invalid", "Unusable", "CannotProve")}
    return bool(exceptions - _our_classes())


def _tells(node: ast.AST, names: set[str]) -> bool:
    def is_one(found: ast.expr) -> bool:
        return isinstance(found, ast.Name) and found.id in names

    def of_one(found: ast.expr, functions: tuple[str, ...]) -> bool:
        called = isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id in functions
        return called and bool(found.args) and is_one(found.args[0])

    for inner in ast.walk(node):
        if isinstance(inner, ast.FormattedValue) and is_one(inner.value):
            return True
        if isinstance(inner, ast.Call) and of_one(inner, ("str", "repr")):
            return True
        if isinstance(inner, ast.Attribute) and ((inner.attr in TELLING and is_one(inner.value)) or of_one(inner.value, ("type",))):
            return True
    return False


def test_the_rule_detects_violations(tmp_path: Path) -> None:
    assert ROOT in PACKAGE.parents
    for told in ("str(error)", "f'no: {error}'", "error.args[0]", "f'{type(error).__name__}'"):
        tree = ast.parse(f"def work():\n try:\n  pass\n except ValueError as error:\n  raise Wrong({told})\n")
        handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
        assert _foreign(handler.type, missing=True)
        assert _tells(handler, {"error"})
