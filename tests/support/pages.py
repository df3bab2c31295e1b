"""Follow pages of the documentation as a reader would: write their files and type their commands into an interactive bash.

with open_shell(folder, env) as shell:
    follow(shell, read_page("docs/guides/first-import.md"))

A block `console` contains commands (`$ ...`) and below each its output: crmctl must print every such line, in this order, `...` standing
for any text. A command exits with 0 unless it says `# exit 9`. A block with a language and a name (`csv people.csv`) is a file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pexpect

from tests.support.cli import CRMCTL, environment
from tests.support.patience import PATIENCE
from tests.support.sources import ROOT

PROMPT = "reader> "
COLUMNS = 120
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXIT = re.compile(r"\s+# exit (\d+)$")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Command:
    line: str
    code: int = 0
    prints: list[str] = field(default_factory=list)


@dataclass
class File:
    name: str
    text: str


Step = Command | File


def read_page(path: str) -> list[Step]:
    """Return the files and commands of a page, in order."""
    return read_steps((ROOT / path).read_text(encoding="utf-8"))


def read_steps(text: str) -> list[Step]:
    """Return the files and commands of a text, in order."""
    steps: list[Step] = []
    for language, name, body in BLOCK.findall(text):
        if name:
            steps.append(File(name, body))
        elif language == "console":
            steps += _commands(body)
    return steps


def _commands(body: str) -> Iterator[Command]:
    command: Command | None = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if command:
                yield command
            exit_note = EXIT.search(line)
            command = Command(EXIT.sub("", line)[2:], int(exit_note[1]) if exit_note else 0)
        elif line.strip():
            assert command, f"{line!r} is printed by no command"
            command.prints.append(line)
    if command:
        yield command


@contextlib.contextmanager
def open_shell(folder: Path, env: Mapping[str, str | None] | None = None, crmctl: Path = CRMCTL.parent) -> Iterator[pexpect.spawn]:
    """Open an interactive bash on a terminal in `folder`, with the `crmctl` of another folder on its PATH."""
    path = {"PATH": f"{crmctl}:/usr/bin:/bin", "PS1": PROMPT, "COLUMNS": None, "LINES": None}
    shell = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile"],
        cwd=str(folder),
        env=environment({**path, **(env or {})}),
        dimensions=(50, COLUMNS),
        timeout=PATIENCE,
        encoding="utf-8",
        echo=False,
    )
    shell.expect_exact(PROMPT)
    type_line(shell, "bind 'set enable-bracketed-paste off'")
    try:
        yield shell
    finally:
        shell.sendline("kill $(jobs -p)")
        shell.close(force=True)


def type_line(shell: pexpect.spawn, line: str) -> tuple[int, str]:
    """Type one line and wait for it. Return its exit code and output. A service started in the background is listening afterwards."""
    shell.sendline(line)
    shell.expect_exact(PROMPT)
    if line.endswith("&"):
        shell.expect("Ctrl-C stops it")
        return 0, str(shell.after)
    printed = str(shell.before)
    shell.sendline("echo code=$?=")
    shell.expect(r"code=(\d+)=")
    code = int(shell.match.group(1))
    shell.expect_exact(PROMPT)
    return code, ESCAPES.sub("", printed).replace("\r\n", "\n")


def follow(shell: pexpect.spawn, steps: Iterable[Step], edit: Callable[[str], str] = str) -> dict[str, str]:
    """Carry out the steps, each line changed by `edit`. Return the output of each command. Fails if the page is wrong."""
    folder = Path(shell.cwd)
    outputs: dict[str, str] = {}
    for step in steps:
        if isinstance(step, File):
            (folder / step.name).write_text(step.text, encoding="utf-8")
            continue
        code, printed = type_line(shell, edit(step.line))
        outputs[step.line] = printed
        assert code == step.code, f"{step.line}\nended with {code}, not {step.code}:\n{printed}"
        assert "Traceback" not in printed
        promised = "\n".join(step.prints)
        pattern = ".*".join(_line_pattern(line) for line in step.prints)
        assert re.search(pattern, printed, re.DOTALL), f"{step.line}\nshould print\n{promised}\nand printed\n{printed}"
    return outputs


def _line_pattern(line: str) -> str:
    """Return a pattern for a line with any blanks; `...` matches any text."""
    words = (re.escape(word).replace(re.escape("..."), ".*?") for word in line.split())
    return r"\s+".join(words)
