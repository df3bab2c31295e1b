"""Every command has a summary, help for every option and argument, and examples that parse."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from crmctl.cli.app import command_help, describe_tree, load_command, walk_commands
from crmctl.cli.help_text import TOPIC_NAMES
from crmctl.cli.registry import COMMANDS
from tests.support.inprocess import run_here

TREE = describe_tree()
LEAVES = list(walk_commands(TREE))
EXAMPLES = [(leaf["command"], example) for leaf in LEAVES for example in leaf["examples"]]


def by_command(leaf: dict[str, Any]) -> str:
    return str(leaf["command"])


def crmctl_calls(line: str) -> list[list[str]]:
    """Return the arguments of every crmctl call in a shell line, without redirections and other programs."""
    substituted = re.findall(r"\$\(([^()]*)\)", line)
    line = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if set(word) <= set("|&;"):
            calls.append([])
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            calls[-1].append(word)
    trimmed = [call[1:] if call and re.match(r"\w+=", call[0]) else call for call in calls]
    return [call[1:] for call in trimmed if call and call[0] == "crmctl"] + [call for inner in substituted for call in crmctl_calls(inner)]


@pytest.mark.parametrize("leaf", LEAVES, ids=by_command)
def test_every_command_explains_itself(leaf: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Z].{5,84}[^.\s]", leaf["summary"])
    assert leaf["help"].strip()
    assert [item for item in [*leaf["arguments"], *leaf["options"]] if not item["help"].strip()] == []


def help_pages() -> list[list[str]]:
    """Return the words of every group and command, the root first."""

    def below(item: dict[str, Any]) -> list[list[str]]:
        return [item["command"].split()[1:], *(words for child in item.get("commands", ()) for words in below(child))]

    return [[], *(words for item in TREE["commands"] for words in below(item))]


@pytest.mark.parametrize("words", help_pages(), ids=" ".join)
def test_a_help_page_has_at_most_60_lines_of_80_columns(words: list[str]) -> None:
    page = command_help(words, 80)
    assert page is not None
    assert sum(-(-max(len(line), 1) // 80) for line in page.splitlines()) <= 60


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_a_topic_has_at_most_60_lines_of_80_columns(topic: str) -> None:
    assert len(run_here("help", topic, env={"COLUMNS": "80"}).out.splitlines()) <= (150 if topic == "agents" else 60)


def test_advanced_options_and_commands_are_explained_by_help_all_only() -> None:
    assert "How long crmctl looks for rows in doubt." not in run_here("bulk", "import", "--help").out
    assert "Advanced options (explained by: crmctl bulk import --help-all)" in run_here("bulk", "import", "--help").out
    usual, _, advanced = run_here("bulk", "import", "--help-all").out.partition("\nAdvanced\n")
    assert "--settle SECONDS" in advanced
    assert "--settle" not in usual
    assert "\n  commands " not in run_here("--help").out
    assert "\n  commands " in run_here("--help-all").out
    assert "--max-wait SECONDS" in run_here("--help-all").out


@pytest.mark.parametrize("leaf", LEAVES, ids=by_command)
def test_every_command_has_an_example_of_itself(leaf: dict[str, Any]) -> None:
    assert leaf["examples"]
    words = leaf["command"].split()[1:]
    assert [line for line in leaf["examples"] if not any(call[: len(words)] == words for call in crmctl_calls(line))] == []


@pytest.mark.parametrize(("command", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_parses(command: str, example: str) -> None:
    for call in crmctl_calls(example):
        parse(call)


def parse(words: list[str]) -> None:
    """Parse a command line without running it; raise what the parser raises."""

    class Given:
        def __init__(self) -> None:
            self.flags: dict[str, Any] = {}

    command = load_command(words[0])
    context = command.make_context(words[0], words[1:], obj=Given())
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def test_the_registry_lists_every_command_once() -> None:
    names = [entry.name for entry in COMMANDS]
    assert len(names) == len(set(names)) == len(TREE["commands"])


def test_no_option_has_two_meanings_of_one_letter() -> None:
    common = {name for option in TREE["commonOptions"] for name in option["names"]}
    clashes = [
        (leaf["command"], name)
        for leaf in LEAVES
        for option in leaf["options"]
        for name in option["names"]
        if name in common and name.startswith("-") and not name.startswith("--")
    ]
    assert clashes == [("crmctl files upload", "-r")], "which was --recursive before it was --raw-output"
