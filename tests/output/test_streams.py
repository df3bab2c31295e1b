"""Standard streams of real processes: terminals, pipes whose reader leaves, full disks, odd locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import CRMCTL
from tests.support.patience import PATIENCE
from tests.support.terminal import close_terminal, open_terminal, run_in_pipes, run_on_terminal

SETUP = """
import os, sys
from crmctl.errors import CrmctlError
from crmctl.output.streams import Streams
from crmctl.output.emitter import Emitter
from crmctl.output.messages import Messages
streams = Streams.of_process()
def emitter(format, **more): return Emitter(streams, format, messages=Messages(streams, machine=format != "table"), **more)
def ended(run):
    try: run()
    except CrmctlError as error:
        Messages(streams, machine=True).report_error(error); sys.exit(error.exit_code)
"""
LIST = SETUP + "items = [{'id': '1', 'updatedAt': '2026-01-01T00:00:00Z', 'n': 1}]\n"


def test_a_terminal_gets_colour_and_local_times_and_a_pipe_neither() -> None:
    code = LIST + "emitter('table').emit_items(items)"
    seen = run_on_terminal(code, env={"TZ": "Europe/Berlin"})
    assert "\x1b[1mid" in seen.out
    assert "updatedAt (CET)" in seen.out
    assert "2026-01-01 01:00" in seen.out
    assert "2026-01-01T" not in seen.out
    assert run_in_pipes(code).out == "id  updatedAt             n\n1   2026-01-01T00:00:00Z  1\n"


COLOUR = [  # environment, --color, on a terminal, in a pipe
    ({}, "auto", True, False),
    ({"NO_COLOR": "1"}, "auto", False, False),
    ({"NO_COLOR": ""}, "auto", True, False),
    ({"CLICOLOR_FORCE": "1"}, "auto", True, True),
    ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, "auto", False, False),
    ({"CLICOLOR_FORCE": "0"}, "auto", True, False),
    ({"CLICOLOR": "0"}, "auto", False, False),
    ({"TERM": "dumb"}, "auto", False, False),
    ({"NO_COLOR": "1"}, "always", True, True),
    ({"CLICOLOR_FORCE": "1"}, "never", False, False),
]


def test_colour_follows_the_flag_then_the_environment() -> None:
    code = SETUP + (
        f"for streams.environ, streams.color_mode in {[case[:2] for case in COLOUR]!r}:\n"
        "    print(streams.color('stdout'), streams.color('stderr'))"
    )
    assert run_on_terminal(code).out.splitlines() == [f"{terminal} {terminal}" for *_, terminal, _ in COLOUR]
    assert run_in_pipes(code).out.splitlines() == [f"{pipe} {pipe}" for *_, pipe in COLOUR]


def test_the_width_is_the_terminals_own_and_follows_it() -> None:
    assert run_on_terminal(SETUP + "print(streams.width)", columns=97).out == "97\n"
    assert run_on_terminal(SETUP + "print(streams.width)", columns=97, env={"COLUMNS": "50"}).out == "50\n"
    assert run_on_terminal(SETUP + "print(streams.error_width)", columns=97, env={"COLUMNS": "50"}).out == "50\n"
    assert run_in_pipes(SETUP + "print(streams.width)").out == "None\n"
    assert run_in_pipes(SETUP + "print(streams.width)", env={"COLUMNS": "50"}).out == "50\n"
    terminal = open_terminal(SETUP + "print(streams.width); input(); print(streams.width)", columns=80)
    terminal.expect("80")
    terminal.setwinsize(24, 132)
    terminal.sendline("")
    assert close_terminal(terminal).out.strip() == "132"


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv", "yaml", "ids"])
@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_leaves_ends_the_run_quietly(format: str, lines: int) -> None:
    code = SETUP + f"emitter({format!r}).emit_pages([{{'id': str(n), 'text': 'x' * 500}} for n in range(100)] for page in range(10))"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    for _ in range(lines):
        writer.stdout.readline()
    writer.stdout.close()
    complaint = writer.stderr.read()
    assert (writer.wait(PATIENCE), complaint) == (0, b"")
    writer.stderr.close()


def test_a_closed_stderr_does_not_change_the_outcome() -> None:
    code = SETUP + "sys.stdin.read(); emitter('json').emit_result({'written': 1}); sys.exit(10)"
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.close()
    complaint = writer.communicate()[1]
    assert (writer.returncode, complaint) == (10, b"")


def test_a_closed_stderr_does_not_stop_a_run() -> None:
    read, write = os.pipe()
    os.close(read)
    code = SETUP + "m = Messages(streams); [m.warn('x' * 100) for _ in range(1000)]; emitter('json').emit_result({'done': True})"
    try:
        ended = run_in_pipes(code, stderr=write)
    finally:
        os.close(write)
    assert (ended.code, ended.out) == (0, '{\n  "done": true\n}\n')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("call", ["emit_items([{'id': '1'}])", "emit_item({'id': '1'})", "emit_result({'id': '1'})"])
def test_a_full_disk_is_an_error_and_not_silence(call: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = run_in_pipes(SETUP + f"ended(lambda: emitter('json').{call})", stdout=full)
    assert ended.code == 2
    assert '"code":"output_failed"' in ended.err
    assert "no space left" in ended.err
    assert ended.err.count("\n") == 1


def test_streams_closed_before_the_start_do_no_harm() -> None:
    code = SETUP + (
        "Messages(streams).warn('x')\nemitter('json').emit_items([])\n"
        "with open(os.environ['SEEN'], 'w') as seen: print(streams.stdin.read() == '', streams.stdin.buffer.read() == b'', file=seen)"
    )
    seen = Path("seen")
    command = f'exec "{sys.executable}" -c "$CODE" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "CODE": code, "SEEN": str(seen.absolute())}, timeout=PATIENCE, check=False
    )
    assert (done.returncode, seen.read_text()) == (0, "True True\n")


@pytest.mark.parametrize(
    "env",
    [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1:strict"}],
)
def test_output_is_utf_8_in_every_locale(env: dict[str, str]) -> None:
    code = SETUP + (
        f"item = {{'id': '1', 'text': {'Zoë 漢字 🙂'!a}, 'half': chr(0xd83d)}}\n"
        "Messages(streams).warn(item['text'] + item['half'])\n"
        "for kind in ('json', 'jsonl', 'csv', 'yaml', 'table'): emitter(kind).emit_items([item])"
    )
    ended = run_in_pipes(code, env=env)
    assert ended.code == 0, ended.err
    assert ended.out.count("Zoë 漢字 🙂") == 5
    assert '"half": "\\ud83d"' in ended.out
    assert ended.err == "warning: Zoë 漢字 🙂�\n"


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "ids"])
def test_machine_formats_import_nothing_heavy(format: str) -> None:
    heavy = "print(sorted({'rich', 'yaml', 'jmespath', 'pydantic'} & {*sys.modules}), file=sys.stderr)"
    code = SETUP + f"emitter({format!r}).emit_items([{{'id': '1'}}])\n{heavy}"
    assert run_in_pipes(code).err == "[]\n"


HELP = (["--version"], ["--help"], ["records", "list", "--help"], ["auth", "--help"], ["help", "exit-codes"])


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_too_ends_quietly_without_a_reader_and_loudly_on_a_full_disk(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [CRMCTL, *arguments]
    with os.fdopen(write, "w") as gone:
        quiet = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    if os.name == "posix":
        closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        assert (closed.returncode, closed.stderr) == (0, b"")
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            loud = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        assert loud.returncode == 2
        assert b"cannot write the output" in loud.stderr
        assert b"Traceback" not in loud.stderr


LONG = SETUP + "streams.write_out('x' * 300_000 + 'end')"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_gets_everything(unbuffered: str) -> None:
    """Some parents leave a non-blocking pipe: a write takes part of the data, which is no error."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-c", LONG]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": unbuffered}) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            content = stream.read()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert content == b"x" * 300_000 + b"end"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pipe of a known size")
def test_a_line_of_which_a_part_was_read_is_not_written() -> None:
    """Without Python's buffer, the system reports how much of a line it took; no reader is left for the rest."""
    import fcntl

    code = SETUP + ("from crmctl.output.streams import ClosedPipe\ntry: streams.write_out('x' * 300_000)\nexcept ClosedPipe: sys.exit(7)")
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=writer) as process:
        os.close(writer)
        assert os.read(reader, 10) == b"x" * 10
        os.close(reader)
    assert process.returncode == 7
