"""Options in any place, formats, errors, pipes and terminals of every command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest
import yaml

from tests.support.cli import CRMCTL, environment, expect_exit, run_crmctl, spawn
from tests.support.fakecrm import Answer, FakeCrm, FakeRequest
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE
from tests.support.service import RunningService


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "yaml", "objects", "list"],
        ["objects", "-o", "yaml", "list"],
        ["objects", "list", "-o", "yaml"],
    ],
)
def test_common_options_before_and_after(crm: RunningService, arguments: list[str]) -> None:
    listed = yaml.safe_load(run_crmctl(*arguments).ok().out)
    assert [item["slug"] for item in listed] == ["people", "companies", "deals"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["records", "list", "people", "--sort", "name", "--sort", "email"], "--sort"),
        (["records", "list", "people", "--limit=1", "--limit=1"], "--limit"),
        (["objects", "list", "-o", "json", "--output", "yaml"], "--output"),
        (["-o", "json", "objects", "list", "--output=yaml"], "--output"),
        (["objects", "-p", "a", "list", "-p", "b"], "--profile"),
    ],
)
def test_an_option_with_one_value_is_given_once(arguments: list[str], option: str) -> None:
    assert f"{option} takes one value and was given more than once" in run_crmctl(*arguments).exits(2).err


def test_switches_and_lists_may_be_repeated(crm: RunningService) -> None:
    run_crmctl("--quiet", "records", "list", "people", "--quiet", "--filter", "name~a", "--filter", "name~b").ok()


def test_formats(crm: RunningService) -> None:
    expected = crm.client.get("/api/v1/objects").json()["objects"]
    assert run_crmctl("objects", "list").ok().json() == expected
    assert run_crmctl("objects", "list", "--json").ok().json() == expected
    assert run_crmctl("objects", "list", "-o", "jsonl").ok().lines() == expected
    assert run_crmctl("objects", "list", "-o", "ids").ok().out.split() == [item["id"] for item in expected]
    assert (
        run_crmctl("objects", "list", "-o", "csv", "--fields", "slug,isActive").ok().out
        == "slug,isActive\npeople,true\ncompanies,true\ndeals,true\n"
    )
    assert run_crmctl("objects", "list", env={"CRMCTL_OUTPUT": "tsv"}).ok().out.startswith("id\ttype\t")
    assert run_crmctl("objects", "list", "-q", "[?slug=='deals'].pluralName").ok().json() == ["Deals"]
    assert run_crmctl("objects", "list", "-o", "table", "--fields", "slug").ok().out.split() == ["slug", "people", "companies", "deals"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["objects", "lst"], "did you mean: crmctl objects list"),
        (["object", "list"], "did you mean: crmctl objects"),
        (["objects", "list", "--xylophone"], "crmctl objects list --help"),
        (["objects", "list", "-o", "xml"], "--output"),
        (["objects", "get"], "crmctl objects get --help"),
        (["objects", "list", "--timeout", "soon"], "--timeout"),
    ],
)
def test_usage_errors_are_json_for_programs_and_text_for_people(crm: RunningService, arguments: list[str], hint: str) -> None:
    machine = run_crmctl(*arguments).exits(2)
    assert machine.out == ""
    assert hint in json.loads(machine.err)["error"]["hint"]
    if "-o" not in arguments:
        person = run_crmctl("-o", "table", *arguments).exits(2)
        assert person.err.startswith("error: ")
        assert "\nhint: " in person.err


def test_nothing_configured() -> None:
    assert "auth login" in run_crmctl("objects", "list").exits(2).error()["hint"]
    assert "CRMCTL_API_KEY" in run_crmctl("objects", "list", "--base-url", "http://127.0.0.1:9").exits(4).error()["hint"]


def test_an_unreachable_service_is_a_network_error(crm: RunningService) -> None:
    crm.stop()
    refused = run_crmctl("objects", "list", "--debug").exits(6)
    assert refused.err.count("< no answer") == 1, "a service that was never reached is not tried again"
    error = run_crmctl("objects", "list").exits(6).error()
    assert error["code"] == "connection_failed"
    assert error["message"] == f"cannot connect to {crm.base_url}: connection refused"


def test_a_named_profile_or_bundle_must_exist(crm: RunningService) -> None:
    wrong = run_crmctl("objects", "list", "-p", "nosuch").exits(2).error()
    assert (wrong["code"], wrong["message"]) == ("unknown_profile", "there is no profile 'nosuch' (--profile)")
    run_crmctl("objects", "list", env={"CRMCTL_PROFILE": "nosuch"}).ok()
    assert run_crmctl("objects", "list", "--ca-bundle", "nosuch.pem").exits(2).error()["code"] == "ca_bundle"


def test_debug_shows_requests_without_the_key(crm: RunningService) -> None:
    shown = run_crmctl("objects", "list", "--debug").ok()
    assert "GET /api/v1/objects" in shown.err
    assert crm.key not in shown.err


def test_a_closed_pipe_ends_quietly(people: list[str]) -> None:
    command = f"'{CRMCTL}' records list people --all -o jsonl | head -1"
    piped = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (piped.returncode, piped.stderr, len(piped.stdout.splitlines())) == (0, "", 1)


@pytest.mark.parametrize(("arguments", "hint"), [(["GET", "members"], None), (["POST", "members"], "look before you repeat it")])
def test_ctrl_c_is_an_error_that_says_whether_a_write_may_have_happened(arguments: list[str], hint: str | None) -> None:
    ended = threading.Event()

    def interrupt(_: FakeRequest) -> Answer:
        process.send_signal(signal.SIGINT)
        ended.wait(PATIENCE)
        return Answer(cut=True)

    with FakeCrm({f"{arguments[0]} /members": interrupt}) as fake:
        process = subprocess.Popen(
            [CRMCTL, "api", *arguments], env=environment(fake.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = process.communicate(timeout=PATIENCE)
        ended.set()
    error = json.loads(err)["error"]
    assert (process.returncode, out, error["code"], error["exitCode"]) == (130, "", "interrupted", 130)
    assert (hint or "") in (error["hint"] or "")
    assert bool(hint) == bool(error["hint"])


def test_a_terminal_gets_a_table_that_fits(people: list[str]) -> None:
    code, printed = expect_exit(spawn("records", "list", "people", "--limit", "3", "--color", "never", columns=120))
    assert code == 0
    table = printed.splitlines()[:4]
    assert all(len(line) <= 120 for line in table), "no row is wrapped"
    assert all(identity[-8:] in printed for identity in people[-3:])
    assert "showing 3 of 120" in printed


def test_colour_is_for_terminals_only(crm: RunningService) -> None:
    assert "\x1b[" in expect_exit(spawn("objects", "list"))[1]
    assert "\x1b[" not in expect_exit(spawn("objects", "list", env={"NO_COLOR": "1"}))[1]
    assert "\x1b[" not in run_crmctl("objects", "list", "-o", "table").ok().out
    assert "\x1b[" in run_crmctl("objects", "list", "-o", "table", "--color", "always").ok().out


def test_a_warning_is_a_line_before_the_error_document(crm: RunningService) -> None:
    """0.0.0.0 reaches this machine, but crmctl cannot know that and treats it as another one."""
    away = ["--base-url", crm.base_url.replace("127.0.0.1", "0.0.0.0"), "-p", "default"]
    listed = run_crmctl("objects", "list", *away).ok()
    assert listed.err.startswith("warning: http://0.0.0.0")
    missing = run_crmctl("records", "get", "nosuch", "1", "--quiet", *away).exits(3)
    warning, document = missing.err.splitlines()
    assert "is not encrypted" in warning
    assert json.loads(document)["error"]["exitCode"] == 3
    near = run_crmctl("records", "get", "nosuch", "1").exits(3)
    assert json.loads(near.err)["error"]["exitCode"] == 3, "without a warning the document is all of stderr"


@pytest.mark.parametrize("given", [("--timeout", "x"), ("--color", "blue"), ("-o", "yaml2")])
def test_an_error_about_an_option_uses_the_format_given_before(given: tuple[str, str]) -> None:
    broken = ("objects", "list", *given)
    assert run_here(*broken, env={"CRMCTL_OUTPUT": "table"}).err.startswith("error: ")
    assert json.loads(run_here(*broken, env={"CRMCTL_OUTPUT": "csv"}).err)["error"]["exitCode"] == 2
    assert json.loads(run_here(*broken).err)["error"]["exitCode"] == 2


def test_an_interrupt_while_the_program_is_loaded_ends_quietly() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'crmctl.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['crmctl', 'objects', 'list']\n"
        "from crmctl.main import main\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@pytest.mark.parametrize("option", [["--query", "a"], ["--fields", "a"], ["-o", "csv"]])
@pytest.mark.parametrize(
    "command", [["reports", "init"], ["mirror", "changes"], ["check", "--suggest"], ["mirror", "sql", "SELECT 1", "--chart"]]
)
def test_commands_with_one_format_refuse_options_that_change_it(people: list[str], command: list[str], option: list[str]) -> None:
    if command[0] != "reports":
        run_crmctl("mirror", "sync", "people").ok()
    refused = run_crmctl(*command, *option).exits(2)
    assert ("excludes other formats" in refused.error()["message"], refused.out) == (True, "")


def test_can_i_obeys_a_query(people: list[str]) -> None:
    assert run_crmctl("auth", "can-i", "records:read", "-q", "allowed").ok().out == "true\n"


def test_an_unknown_shape_is_refused_everywhere(people: list[str]) -> None:
    assert "--shape" in run_crmctl("members", "list", "--shape", "round").exits(2).error()["message"]
