"""Print figures of the source tree: sizes, rare shapes, and the functions and files that three commands run.

    python benchmarks/structure.py [--no-runs] [CHECKOUT ...]

Prints one column for each checkout, or for this one. The runs start a throw-away service of each checkout with this interpreter.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

NOUNS = {"mapping", "paging", "routing"}
LONGEST_FILE = 600
LONGEST_FUNCTION = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef

COMMANDS = {
    "import of one row": ("bulk", "import", "people", "one.csv"),
    "list with a filter": ("records", "list", "people", "--filter", "email~acme.com"),
    "first mirror sync": ("mirror", "sync", "people"),
}
RUN = """
import os, sys, threading
functions, classes = set(), set()
def profile(frame, event, arg):
    code = frame.f_code
    if event == "call" and "/crmctl/" in code.co_filename and code.co_name.strip("<>") not in {COMPREHENSIONS}:
        (functions if code.co_flags & 1 else classes).add((code.co_filename, code.co_firstlineno))
threading.setprofile(profile)
sys.setprofile(profile)
from crmctl.main import main
sys.argv[0] = "crmctl"
try:
    code = main()
except SystemExit as end:
    code = end.code
sys.setprofile(None)
print(len(functions), len(classes), len({name for name, _ in functions | classes}), code or 0, file=sys.stderr)
sys.stderr.flush()
os._exit(0)
""".replace("{COMPREHENSIONS}", repr(("module", "lambda", "genexpr", "listcomp", "dictcomp", "setcomp")))
"""Run one command of crmctl; print the functions, class bodies and files it ran, in every thread, and its exit code."""


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def arguments(function: Function) -> int:
    """Return the number of parameters, without `self` and `cls`."""
    parameters = function.args
    names = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_command(function: Function) -> bool:
    """Whether the parameters are the options of a command."""
    calls = [decorator.func for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr == "command" for call in calls)


def returns_error(function: Function) -> bool:
    """Whether an error is one of the possible results. A function that only builds an error for `raise` does not count."""
    annotation = ast.unparse(function.returns) if function.returns else ""
    return re.search(r"\b\w+Error\b", annotation) is not None and not annotation.isidentifier()


def deferred(tree: ast.AST) -> int:
    """Count the imports of our own modules inside functions."""
    nodes = {id(node): node for function in functions(tree) for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    return sum((node.module or "").startswith("crmctl") for node in nodes.values())


def header_lines(tree: ast.Module, text: str) -> int:
    """Count the lines before the first statement that is not the docstring or an import."""
    for number, node in enumerate(tree.body):
        is_docstring = number == 0 and isinstance(node, ast.Expr)
        is_type_checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not is_docstring and not is_type_checking and not isinstance(node, ast.Import | ast.ImportFrom):
            return node.lineno - 1
    return text.count("\n")


def single_importers(trees: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """Return the modules that exactly one module imports, each with its importer."""
    names = {f"crmctl.{name.removesuffix('.py').replace('/', '.')}": name for name in trees}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                targets = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
                for target in targets:
                    if names.get(target, name) != name:
                        importers[names[target]].add(name)
    return [(name, next(iter(whole))) for name, whole in importers.items() if len(whole) == 1]


def figures(root: Path) -> dict[str, str]:
    """Return the figures of one checkout that need no run, formatted."""
    package = root / "src" / "crmctl"
    texts = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    every = [function for tree in trees.values() for function in functions(tree)]
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = [{ast.unparse(base).partition("[")[0] for base in node.bases} for node in classes]
    top = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    modules = Counter(Path(name).name for name in texts if not name.endswith("__init__.py"))
    lines = sum(text.count("\n") for text in texts.values())
    headers = sum(header_lines(trees[name], text) for name, text in texts.items())
    single = single_importers(trees)
    counts = {
        "lines": lines,
        "files": sum(modules.values()),
        f"files of more than {LONGEST_FILE} lines": len([text for text in texts.values() if text.count("\n") > LONGEST_FILE]),
        "functions": len(every),
        f"functions of more than {LONGEST_FUNCTION} lines": len(
            [one for one in every if (one.end_lineno or 0) - one.lineno >= LONGEST_FUNCTION]
        ),
        "functions of more than five arguments, without commands": len(
            [one for one in every if arguments(one) > 5 and not is_command(one)]
        ),
        "functions that may return an error": len([one for one in every if returns_error(one)]),
        "Protocols": len([names for names in bases if names & {"Protocol", "typing.Protocol"}]),
        "dict[str, Any]": sum(text.count("dict[str, Any]") for text in texts.values()),
        "modules with one importer": len(single),
        "modules with one importer, in their own folder": len([name for name, by in single if Path(name).parent == Path(by).parent]),
        "file names used more than once": len([name for name, count in modules.items() if count > 1]),
        "imports of our own inside functions": sum(map(deferred, trees.values())),
        "class names used more than once": len([name for name, count in top.items() if count > 1]),
        "modules named by a gerund": len([name for name in modules if name.endswith("ing.py") and Path(name).stem not in NOUNS]),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py")),
    }
    return {**{name: f"{count:,}" for name, count in counts.items()}, "share of file headers": f"{100 * headers / lines:.1f} %"}


def runs(root: Path) -> dict[str, str]:
    """Return the functions and files that each command runs against a throw-away service, formatted."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {f"CRMCTL_{kind}_DIR": f"{folder}/{kind}" for kind in ("CONFIG", "STATE", "CACHE")}
        env = {name: value for name, value in os.environ.items() if not name.startswith("CRMCTL_")} | folders
        env |= {"PYTHONPATH": str(root.resolve() / "src"), "HOME": folder, "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
        Path(folder, "one.csv").write_text("name,email\nAda,ada@acme.com\n", encoding="utf-8")
        serve = [sys.executable, "-m", "crmctl", "serve", "--data", f"{folder}/data", "--port", "0", "--rate-limit", "0"]
        with subprocess.Popen(serve, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as service:
            assert service.stdout is not None
            ready = json.loads(service.stdout.readline())
            env |= {"CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"]}
            try:
                return {name: walked(words, env, folder) for name, words in COMMANDS.items()}
            finally:
                service.terminate()


def walked(words: tuple[str, ...], env: dict[str, str], folder: str) -> str:
    """Run one command under a profiler; return "functions and class bodies in files (functions)"."""
    done = subprocess.run([sys.executable, "-c", RUN, *words], env=env, cwd=folder, capture_output=True, text=True, check=True)
    called, classes, files, code = done.stderr.strip().splitlines()[-1].split()
    if code != "0":
        raise SystemExit(f"{words} ended with {code}: {done.stderr}")
    return f"{int(called) + int(classes)} in {files} ({called})"


def main(arguments: list[str]) -> int:
    with_runs = "--no-runs" not in arguments
    roots = [Path(name) for name in arguments if not name.startswith("--")] or [Path(__file__).parents[1]]
    columns = [{**figures(root), **(runs(root) if with_runs else {})} for root in roots]
    for name in columns[0]:
        print("|".join(["", f" {name} ", *(f" {column[name]} " for column in columns), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
