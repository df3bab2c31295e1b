"""What a library or Python says of a failure does not reach a user as it is: `errors.reason` puts it into our words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.sources import PACKAGE, ROOT, package_files

TELLING = {"args", "errors", "msg", "strerror"}
"""Attributes that hold an exception's text."""

OUR_TEXTS = {
    "bulk/dedupe/merge_plan.py:_odd": "of a KeyError the key, which is a field of the plan",
    "bulk/merge/exchanges.py:_arranged": "of a CycleError the groups, which are ours",
    "bulk/sources/jsonarray.py:_end_of_flawed": "what jsontext says of what is no JSON for another reason than its syntax",
    "bulk/sources/jsonarray.py:_failure": "looked up in a table of our words",
    "bulk/sources/jsonrecords.py:json_problem": "what jsontext says of a key that is there twice",
    "cli/login.py:_with_address": "what config.keys says of an address",
    "config/profiles.py:_check": "what config.keys says of a value",
    "config/settings.py:_parsed": "what config.keys says of a value",
    "mirror/sql.py:_explained": "what SQLite says of the user's own SQL, which people look up",
    "models/base.py:parse": "only where, not what",
    "models/typed_text.py:_json_inside": "what jsontext says of a key that is there twice",
    "output/selection.py:_why": "what JMESPath says of the user's own expression",
    "schema/document.py:read_schema": "their kinds are looked up in a table of our words",
    "service/console/action_form.py:actions_of": "what _read says of a field",
    "service/console/record_form.py:changes": "what _read says of a field",
    "service/outbound/caller.py:post": "kinds of failed calls, as the log of deliveries has them; their texts are outbound/connection.py's",
    "service/shapes.py:check_shape": "their kinds are looked up in a table of our words",
    "service/workflows/cron.py:check_cron": "what the library says of the user's own schedule",
    "service/workflows/templates.py:_why": "what Jinja says of the user's own template",
    "cli/app.py:_unexpected": "a bug: what it takes to report it",
    "service/failures.py:_skipped": "by its kind it is known again",
    "service/http/errors.py:answer_for": "by its kind it is known which status it is",
    "service/store/postgres.py:_short": "a word of PostgreSQL's, for the one error that is told",
    "service/failures.py:tell": "the log of who runs the service",
}
"""Function by function: why its texts may be shown."""


def test_a_caught_exception_speaks_through_reason() -> None:
    told = {where for path in package_files() if path.name != "errors.py" or path.parent != PACKAGE for where in _tellers(path)}
    assert told - OUR_TEXTS.keys() == set(), "use errors.reason, or say in OUR_TEXTS why it is our own text"
    assert OUR_TEXTS.keys() - told == set(), "no longer there"


@cache
def _our_classes() -> frozenset[str]:
    return frozenset(
        node.name for path in package_files() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )


def _tellers(path: Path) -> Iterator[str]:
    """The functions of a file that put an exception which is not ours into a text."""
    tree = ast.parse(path.read_text())
    name = path.relative_to(PACKAGE).as_posix()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            given = {argument.arg for argument in function.args.args if _foreign(argument.annotation, missing=False)}
            if _tells(function, given):
                yield f"{name}:{function.name}"
            for handler in ast.walk(function):
                foreign = isinstance(handler, ast.ExceptHandler) and _foreign(handler.type, missing=True)
                if foreign and handler.name and _tells(handler, {handler.name}):
                    yield f"{name}:{function.name}"


def _foreign(kinds: ast.expr | None, *, missing: bool) -> bool:
    """Whether one of the classes is a library's or Python's."""
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


def test_the_rule_sees_what_it_forbids(tmp_path: Path) -> None:
    assert ROOT in PACKAGE.parents
    for told in ("str(error)", "f'no: {error}'", "error.args[0]", "f'{type(error).__name__}'"):
        tree = ast.parse(f"def work():\n try:\n  pass\n except ValueError as error:\n  raise Wrong({told})\n")
        handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
        assert _foreign(handler.type, missing=True)
        assert _tells(handler, {"error"})
