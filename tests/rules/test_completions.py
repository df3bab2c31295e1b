"""Completion scripts in real shells: commands and options from the table, slugs and profiles from the cache."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell  # type: ignore[import-untyped]
from completions import generate

from crmctl.cli.app import describe_tree
from crmctl.cli.commands.completion import SCRIPTS
from crmctl.cli.complete import TABLE
from crmctl.cli.registry import BY_NAME, OF_RECORDS
from crmctl.write.journal import FILE_NAME
from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.programs import find_program
from tests.support.service import running_service
from tests.support.shells import Shell, fish_candidates
from tests.support.sources import ROOT, imported_modules

SHELLS = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("bash", "zsh")]


FOLDERS = ("CRMCTL_CONFIG_DIR", "CRMCTL_CACHE_DIR")


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """Make folders for a profile `work` whose cache knows the objects and the attributes of people, and whose service is gone."""
    root = tmp_path_factory.mktemp("completions")
    folders = {name: str(root / name) for name in FOLDERS}
    (root / FOLDERS[0]).mkdir()
    with running_service(root / "data") as service:
        profiles = f'default_profile = "work"\n[profiles.work]\nbase_url = "{service.base_url}"\n[profiles.spare]\n'
        (root / FOLDERS[0] / "config.toml").write_text(profiles)
        env = {**folders, "CRMCTL_API_KEY": service.key}
        objects = [item["slug"] for item in run_crmctl("objects", "list", "-o", "json", env=env).ok().json()]
        attributes = [item["slug"] for item in run_crmctl("attributes", "list", "people", "-o", "json", env=env).ok().json()]
        run_crmctl("records", "list", "people", "--fields", "id", env=env).ok()
    return root, {"objects": objects, "attributes": attributes}


@pytest.fixture
def cached(known: tuple[Path, dict[str, list[str]]]) -> dict[str, list[str]]:
    """Copy the profile and the cache for one test."""
    root, names = known
    for name in FOLDERS:
        shutil.copytree(root / name, os.environ[name], dirs_exist_ok=True)
    return names


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    started = Shell(request.param, ROOT / "completions" / SCRIPTS[request.param], tmp_path)
    yield started
    started.close()


def test_the_tab_key_completes_commands_and_options(shell: Shell) -> None:
    assert shell.one_of("crmctl reco") == "crmctl records "
    assert shell.one_of("crmctl records se") == "crmctl records search "
    assert shell.one_of("crmctl -o json records cou") == "crmctl -o json records count "
    assert shell.one_of("crmctl records list people --so").rstrip("= ") == "crmctl records list people --sort"


def test_every_level_offers_its_commands(shell: Shell) -> None:
    assert shell.all_of("crmctl ") == sorted(BY_NAME)
    assert shell.all_of("crmctl --profile x objects ") == ["create", "delete", "get", "list", "update"]


def test_values_that_are_fixed_words(shell: Shell) -> None:
    assert shell.all_of("crmctl records list people --output ") == ["csv", "ids", "json", "jsonl", "table", "tsv", "yaml"]
    assert shell.one_of("crmctl records list people --order=d") == "crmctl records list people --order=desc "
    assert shell.all_of("crmctl completion ") == ["bash", "fish", "powershell", "zsh"]


def test_slugs_and_profiles_come_from_the_cache(shell: Shell, cached: dict[str, list[str]]) -> None:
    assert sorted(shell.all_of("crmctl records list ")) == sorted(cached["objects"])
    assert shell.all_of("crmctl records list people --profile ") == ["spare", "work"]
    assert shell.one_of("crmctl records list peo") == "crmctl records list people "


def test_names_of_reports_may_hold_blanks(shell: Shell, cached: dict[str, list[str]]) -> None:
    remember("reports", "Deals by stage", "People", "Odd $(touch here)")
    assert shell.all_of("crmctl reports get Dea") == ["Deals by stage"], "one word for the shell"
    assert shell.one_of("crmctl reports runs Deals\\ by") == "crmctl reports runs Deals by stage "
    assert shell.all_of("crmctl reports get ") == ["Deals by stage", "People"]


def put_jobs(states: dict[str, str], rows: int = 7) -> Path:
    """Write a journal with the state and the rows of each job; return the folder of jobs."""
    jobs = Path(os.environ["CRMCTL_STATE_DIR"]) / "jobs"
    for name, state in states.items():
        (jobs / name).mkdir(parents=True)
        with closing(sqlite3.connect(jobs / name / FILE_NAME)) as journal, journal:
            journal.execute("CREATE TABLE job (state TEXT, rows INTEGER, header TEXT)")
            journal.execute("CREATE TABLE fact (kind TEXT, key TEXT)")
            journal.execute("INSERT INTO job VALUES (?, ?, ?)", (state, rows, '{"kind":"import"}'))
    return jobs


def test_jobs_and_files_of_this_machine(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file of registrations lies in the folder of jobs, but is no job."""
    jobs = put_jobs({"20261122-aaaaa": "open", "20261122-bbbbb": "finished", "20261122-ccccc": "undone", "20261122-ddddd": "rejected"})
    put_jobs({"20261122-eeeee": "finished"}, rows=0)
    (jobs / "registering.sqlite").touch()
    (jobs / "objects").mkdir()
    assert len(shell.all_of("crmctl bulk jobs ")) == 5
    assert sorted(shell.all_of("crmctl bulk undo ")) == ["20261122-aaaaa", "20261122-bbbbb"]
    assert shell.one_of("crmctl bulk resume ") == "crmctl bulk resume 20261122-aaaaa "
    assert shell.one_of("crmctl bulk undo 20261122-a") == "crmctl bulk undo 20261122-aaaaa "
    (tmp_path / "my people.csv").touch()
    shell.run(f"cd {tmp_path}")
    assert shell.one_of("crmctl bulk import people my") == "crmctl bulk import people my people.csv "


@pytest.mark.needs("fish")
def test_the_tab_key_in_fish(cached: dict[str, list[str]], tmp_path: Path) -> None:
    """On a real terminal: commands, options, slugs, jobs, files."""
    put_jobs({"20261122-aaaaa": "open", "20261122-bbbbb": "open"})
    (tmp_path / "jobs" / "20261122-c").mkdir(parents=True)
    (tmp_path / "my people.csv").touch()
    shell = Shell("fish", ROOT / "completions" / SCRIPTS["fish"], tmp_path)
    try:
        shell.run(f"cd {tmp_path}")
        for typed, completed in (
            ("crmctl rec", "crmctl records "),
            ("crmctl records list peo", "crmctl records list people "),
            ("crmctl records list people --so", "crmctl records list people --sort "),
            ("crmctl bulk resume ", "crmctl bulk resume 20261122-"),
            ("crmctl bulk undo 20261122-a", "crmctl bulk undo 20261122-aaaaa "),
            ("crmctl bulk jobs 20261122-b", "crmctl bulk jobs 20261122-bbbbb "),
            ("crmctl bulk import people my", "crmctl bulk import people my people.csv "),
            ("crmctl bulk inspect my", "crmctl bulk inspect my people.csv "),
            ("crmctl bulk delete people --ids my", "crmctl bulk delete people --ids my people.csv "),
        ):
            assert shell.one_of(typed) == completed
    finally:
        shell.close()


def remember(kind: str, *names: str) -> None:
    """Put names into the only cache, as a list command does."""
    kept = next(Path(os.environ["CRMCTL_CACHE_DIR"]).rglob("*.json"))
    lists = json.loads(kept.read_text())
    lists[kind] = {"at": time.time(), "items": [{"id": str(number), "name": name} for number, name in enumerate(names)]}
    kept.write_text(json.dumps(lists))


def test_slugs_of_the_object_that_was_named(shell: Shell, cached: dict[str, list[str]]) -> None:
    assert sorted(shell.all_of("crmctl records create people --set ")) == sorted(f"{slug}=" for slug in cached["attributes"])
    assert shell.all_of("crmctl records list people --fields createdA") == ["createdAt"]
    assert shell.one_of("crmctl records list people --fields id,createdA") == "crmctl records list people --fields id,createdAt"
    assert shell.all_of("crmctl records list people -p spare --filter ") == []


COMPLETED = {
    "records create people --set ema": "records create people --set email=",
    "records create people --set email=": "records create people --set email=",
    "records create people --set=ema": "records create people --set=email=",
    "records list people --filter emai": "records list people --filter email=",
    "records list people --filter email=": "records list people --filter email=",
    "records list people --filter email=a:": "records list people --filter email=a:",
    "records list people --fields=id,createdA": "records list people --fields=id,createdAt",
    "records list people --output=jsonl": "records list people --output=jsonl ",
}


def test_a_word_with_an_equals_sign_is_completed_once(shell: Shell, cached: dict[str, list[str]]) -> None:
    assert {typed: shell.one_of(f"crmctl {typed}").removeprefix("crmctl ") for typed in COMPLETED} == COMPLETED


OF_TEXT = {"equals", "notEquals", "contains", "notContains", "startsWith", "endsWith", "in", "not in", "isEmpty", "isNotEmpty"}


def test_a_condition_is_completed_to_its_end(shell: Shell, cached: dict[str, list[str]]) -> None:
    """Attributes, then operators, then the options of a select. An opened quote stays open as long as more must follow."""
    ask = "crmctl records list people --filter"
    assert set(shell.inserted(f"{ask} 'email ", "email ")) == OF_TEXT
    assert set(shell.inserted(f"{ask} 'subs", "subscribed ")) == {"isTrue", "isFalse", "isEmpty", "isNotEmpty"}
    assert shell.typed(f"{ask} 'ema", "is'") == "email is"
    assert shell.typed(f"{ask} 'email cont", "@acme'") == "email contains @acme"
    assert shell.typed(f"{ask} 'status in new,cust", shell.closing) == "status in new,customer"
    assert shell.typed(f"{ask} 'address.ci", "=Rome'") == "address.city =Rome"
    assert shell.typed(f"{ask} status=cust", "") == "status=customer"


@pytest.mark.needs("bash")
@pytest.mark.parametrize("breaks", ["' \\t\\n'", "' \\t\\n\"'\\''><=;|&(:'"])
def test_bash_with_and_without_its_word_breaks(tmp_path: Path, cached: dict[str, list[str]], breaks: str) -> None:
    shell = Shell("bash", ROOT / "completions" / SCRIPTS["bash"], tmp_path)
    shell.run(f"COMP_WORDBREAKS=${breaks}")
    for line in ("crmctl records list people --order=d", "crmctl records create people --set ema"):
        assert shell.one_of(line).rstrip() == line + ("esc" if line.endswith("d") else "il=")
    assert shell.one_of("crmctl records create people --set email=") == "crmctl records create people --set email="
    shell.close()


def test_nothing_known_offers_nothing_and_says_nothing(shell: Shell) -> None:
    assert shell.all_of("crmctl records list ") == []
    assert shell.all_of("crmctl -p ") == []


@pytest.mark.needs("fish")
def test_fish(cached: dict[str, list[str]]) -> None:
    def offered(line: str) -> list[str]:
        return fish_candidates(ROOT / "completions" / SCRIPTS["fish"], line)

    assert offered("crmctl reco") == ["records"]
    assert set(offered("crmctl -o json records ")) >= set(OF_RECORDS)
    assert offered("crmctl records list people --so") == ["--sort"]
    assert offered("crmctl records list people --order ") == ["asc", "desc"]
    assert sorted(offered("crmctl records list ")) == sorted(cached["objects"])
    assert sorted(offered("crmctl records create people --set ")) == sorted(f"{slug}=" for slug in cached["attributes"])
    assert offered("crmctl records list people --fields id,createdA") == ["id,createdAt"]
    assert offered("crmctl -p ") == ["spare", "work"]
    assert offered("crmctl records list people -p spare --filter ") == []
    assert {one.removeprefix("email ").strip() for one in offered("crmctl records list people --filter 'email ")} == OF_TEXT
    assert offered("crmctl records list people --filter 'email cont") == ["email contains ", "email contains VALUE"]
    assert "status in new,customer" in offered("crmctl records list people --filter 'status in new,")
    assert "status=customer" in offered("crmctl records list people --filter status=")
    assert "--filter=status=customer" in offered("crmctl records list people --filter=status=")


def test_the_powershell_script_is_powershell() -> None:
    """On machines without PowerShell, at least its grammar accepts the script."""
    grammar = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
    text = (ROOT / "completions" / SCRIPTS["powershell"]).read_bytes()
    assert not grammar.parse(text).root_node.has_error
    assert grammar.parse(text.replace(b"    }\n", b"    \n", 1)).root_node.has_error


@pytest.mark.skipif(find_program("pwsh") is None, reason="not installed: pwsh, which few package archives have")
def test_powershell(cached: dict[str, list[str]], tmp_path: Path) -> None:
    script = tmp_path / "ask.ps1"
    complete = (
        "[System.Management.Automation.CommandCompletion]::CompleteInput($line, $line.Length, $null).CompletionMatches.CompletionText"
    )
    script.write_text(f". {ROOT / 'completions' / SCRIPTS['powershell']}\n$line = $args[0]\n{complete}\n")

    def offered(line: str) -> list[str]:
        return subprocess.run(["pwsh", "-NoProfile", script, line], capture_output=True, text=True, check=True).stdout.split()

    assert offered("crmctl reco") == ["records"]
    assert offered("crmctl records list people --order ") == ["asc", "desc"]
    assert sorted(offered("crmctl records list ")) == sorted(cached["objects"])


@pytest.mark.needs("zsh")
def test_zsh_loads_the_script_from_fpath(tmp_path: Path) -> None:
    (tmp_path / "_crmctl").write_text((ROOT / "completions" / "_crmctl").read_text())
    script = "fpath=($1 $fpath); autoload -Uz compinit; compinit -u -D; print $_comps[crmctl]"
    run = subprocess.run(["zsh", "-f", "-c", script, "zsh", tmp_path], env=environment(), capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("_crmctl\n", "")


def test_a_value_no_shell_can_take_is_left_out(cached: dict[str, list[str]]) -> None:
    kept = next(Path(os.environ["CRMCTL_CACHE_DIR"]).rglob("*.json"))
    kept.write_text(kept.read_text().replace('"people"', '"$(touch here)"'))
    assert sorted(offered("records", "list", "")) == sorted(set(cached["objects"]) - {"people"})


def offered(*words: str) -> list[str]:
    """Return crmctl's candidates for the last word."""
    return [line.partition("\t")[0] for line in run_crmctl("__complete", *words).ok().out.splitlines()[1:]]


def test_options_that_take_one_known_value(cached: dict[str, list[str]]) -> None:
    assert offered("records", "list", "people", "--sort", "created_")[:1] == ["created_at"]
    assert offered("records", "count", "people", "--by", "ema") == ["email"]
    assert offered("records", "count", "people", "--sum", "sco") == ["score"]
    assert offered("bulk", "import", "people", "x.csv", "--map", "E-mail=ema") == ["E-mail=email"]
    assert offered("bulk", "import", "people", "x.csv", "--ref", "comp") == ["company="]
    assert offered("attributes", "create", "people", "--type", "se") == ["select"]
    assert offered("bulk", "dedupe", "people", "--match", "email,pho") == ["email,phone"]
    assert offered("bulk", "dedupe", "people", "--keep", "most-c") == ["most-complete"]
    assert offered("records", "merge", "people", "a", "b", "--keep", "ema") == ["email="]
    assert offered("help", "exit") == ["exit-codes"]
    assert offered("help", "records", "cou") == ["count"]
    assert offered("api", "PA") == ["PATCH"]


def test_an_option_that_was_given_is_not_offered_again() -> None:
    assert offered("records", "list", "people", "--limit", "5", "--li") == []
    assert offered("records", "list", "people", "--filter", "x=1", "--fil") == ["--filter"]


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("crmctl records list people --order=d", ["desc "]),
        ("crmctl 'records' \"list\" people --order ", ["asc ", "desc "]),
        ("crmctl records list people --order 'd", ["desc"]),
        ('crmctl records list people --order="d', ["desc"]),
        ("crmctl  -p it\\'s  records cou", ["count "]),
    ],
)
def test_a_line_as_bash_splits_it(line: str, candidates: list[str]) -> None:
    assert run_crmctl("__complete", "--line", line, " \t\n\"'><=;|&(:").ok().out == "".join(f"{text}\n" for text in ["", *candidates])


@pytest.mark.parametrize(
    "arguments", [[], ["--line"], ["--line", ""], ["nonsense", "x", ""], ["records", "list", ""], ["records", "list", "-p", ""]]
)
def test_trouble_is_silent(arguments: list[str]) -> None:
    config = Path(os.environ["CRMCTL_CONFIG_DIR"])
    config.mkdir(parents=True)
    (config / "config.toml").write_text("not toml at all [")
    done = run_crmctl("__complete", *arguments).ok()
    assert (done.out.splitlines()[1:] if arguments else [], done.err) == ([], "")


def test_a_candidate_needs_no_library() -> None:
    modules = imported_modules([CRMCTL, "__complete", "records", "list", ""])
    heavy = {"typer", "httpcore", "rich", "keyring", "pydantic", "yaml", "tomlkit", "platformdirs"}
    assert heavy & {name.partition(".")[0] for name in modules} == set()
    assert "crmctl.client.schema_cache" in modules


def test_a_tab_takes_80_ms_of_processor_time_at_most(cached: dict[str, list[str]]) -> None:
    """Take the best of five runs, because the machine may be busy."""

    def milliseconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert offered("records", "list", "people", "--filter", "'email ")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(milliseconds() for _ in range(5)) <= 80


@pytest.mark.parametrize("shell_name", SCRIPTS)
def test_crmctl_prints_the_script_of_the_repository(shell_name: str) -> None:
    kept = (ROOT / "completions" / SCRIPTS[shell_name]).read_text()
    assert run_crmctl("completion", shell_name).ok().out == kept
    assert len(kept.splitlines()) <= 35


def test_the_table_is_current() -> None:
    assert json.loads(TABLE.read_text()) == generate.read_table(describe_tree()), "out of date: run `make generated`"
