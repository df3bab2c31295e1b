"""Real interactive shells on a pseudo-terminal with a loaded completion script, and what they insert at the end of a line."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pexpect

from tests.support.cli import CRMCTL, environment
from tests.support.patience import PATIENCE
from tests.support.programs import find_program

READY = "ready> "
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
BASH = """
PS1='{ready}'; PS2=; export PATH={folder}:$PATH
bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; bind '"\\C-t": insert-completions'
source {script}
"""
ZSH = """
PS1='{ready}'; PS2=; PROMPT_EOL_MARK=; unsetopt prompt_sp prompt_cr beep; zle_bracketed_paste=(); export PATH={folder}:$PATH
fpath=({home} $fpath); autoload -Uz compinit; compinit -u -d {home}/zcompdump
zstyle ':completion:*' completer _complete; zstyle ':completion:all-matches::::' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert yes
zle -C all-matches complete-word _generic; bindkey -e; bindkey '^T' all-matches; bindkey '^I' complete-word
source {script}
"""
FISH = """
function fish_prompt; echo -n '{ready}'; end
function fish_right_prompt; end
set -g fish_greeting; set -g fish_autosuggestion_enabled 0; set -gx PATH {folder} $PATH
source {script}
"""
SETUPS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
OPTIONS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "--private", "-i"]}
PRINT_READY = {"fish": "function print_ready; echo is''set; end"}


class Shell:
    """An interactive bash, zsh or fish. `all_of(line)` inserts every candidate, which fish cannot; `one_of(line)` presses TAB."""

    def __init__(self, name: str, script: Path, folder: Path) -> None:
        self.front = r"\n" if name == "fish" else ""  # fish shows the typed line
        self.closing = "'" if name == "zsh" else ""  # bash closes a quote after a complete word
        program = find_program(name)
        assert program is not None
        if name == "zsh":
            (folder / "zcompdump").write_bytes(_zsh_functions(program))
        setup = folder / f"setup.{name}"
        setup.write_text(SETUPS[name].format(ready=READY, folder=CRMCTL.parent, home=folder, script=script))
        self.terminal = pexpect.spawn(
            str(program),
            OPTIONS[name],
            env=environment({"PS1": READY, "TERM": "dumb"} if name == "fish" else {"PS1": READY}),
            dimensions=(50, 4000),
            timeout=PATIENCE,
            encoding="utf-8",
            echo=False,
        )
        ready = PRINT_READY.get(name, "print_ready() { echo is''set; }")
        self.terminal.sendline(f"source {setup}; {ready}; print_ready")
        self.terminal.expect("isset")
        self.terminal.expect_exact(READY)

    def run(self, line: str) -> None:
        """Run a command line of the shell itself."""
        self.terminal.sendline(line)
        self.terminal.expect_exact(READY)

    def all_of(self, line: str) -> list[str]:
        """Return the words that replace the last word of `line` when all candidates are inserted, or that word if there are none."""
        words = self._words(line, "\x14")
        return words[len(line.split(" ")) - 1 :]

    def one_of(self, line: str) -> str:
        """Return the line after the TAB key; it ends with a blank if its last word is complete."""
        return " ".join(self._words(line, "\t@")).removesuffix("@")

    def inserted(self, line: str, front: str) -> list[str]:
        """Return what follows `front` in each candidate for a last word that begins with a quote; they may share one word."""
        words = " ".join(self._words(line, f"\x14{self.closing}")).partition(front)[2]
        return [word.strip(" '") for word in words.split(front)]

    def typed(self, line: str, rest: str) -> str:
        """Return the last word of the line after the TAB key and further typing."""
        return self._words(line, f"\t{rest}")[-1]

    def _words(self, line: str, keys: str) -> list[str]:
        """Type the line and the keys, then let the shell print the words of its command line."""
        self.terminal.send(f"{line}{keys}\x01printf 'word:%s\\n' \r")
        self.terminal.expect(self.front + r"word:([\s\S]*?)" + READY)
        printed = CONTROL.sub("", f"word:{self.terminal.match.group(1)}")
        return [line.removeprefix("word:") for line in printed.splitlines() if line.startswith("word:")]

    def close(self) -> None:
        self.terminal.close(force=True)


@cache
def _zsh_functions(zsh: Path) -> bytes:
    """Return zsh's list of its own completion functions, which takes half a second to make; zsh makes another one if it does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "zcompdump")
        subprocess.run([zsh, "-f", "-c", 'autoload -Uz compinit; compinit -u -d "$1"', "zsh", dump], env=environment(), check=True)
        return dump.read_bytes()


def fish_candidates(script: Path, line: str) -> list[str]:
    """Return fish's candidates at the end of `line`, without descriptions."""
    program = find_program("fish")
    assert program is not None
    command = f"set -gx PATH {CRMCTL.parent} $PATH; source {script}; complete -C {line!r}"
    run = subprocess.run(
        [program, "--no-config", "-c", command], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return [row.partition("\t")[0] for row in run.stdout.splitlines()]
