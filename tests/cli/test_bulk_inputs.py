"""Inputs that can be read only once, as shells provide them, and arguments that are no input."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import RunningService
from tests.support.warm_program import warm_program

FIRMS = "Name,Domain\n" + "".join(f"Firm {n},firm{n}.com\n" for n in range(30))


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)


def count() -> int:
    counted: int = run_crmctl("records", "count", "companies").ok().json()["count"]
    return counted


@pytest.mark.needs("bash")
@pytest.mark.parametrize("way", ["{command} <(cat {file})", "cat {file} | {command} /dev/stdin", "cat {file} | {command} /dev/fd/0",
                                 "{command} /dev/stdin < {file}", "{command} /dev/fd/7 7< {file}"])  # fmt: skip
def test_inputs_from_a_shell_are_read_like_files(crm: RunningService, tmp_path: Path, way: str) -> None:
    file = tmp_path / "firms.csv"
    file.write_text(FIRMS)
    program = CRMCTL
    if "<(" not in way and "7<" not in way:  # a warm process is handed three streams
        warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
        program = tmp_path / "bin" / "crmctl"
    for words in ("bulk inspect", "bulk import companies --key name --dry-run", "bulk import companies --key name"):
        ended = shell(way.format(command=f"{shlex.quote(str(program))} {words}", file=shlex.quote(str(file))))
        assert ended.returncode == 0, ended.stderr
    assert count() == 30


@pytest.mark.parametrize("words", [("bulk", "inspect"), ("bulk", "import", "companies", "--dry-run"), ("bulk", "import", "companies")])
def test_a_named_pipe_is_read_to_its_end(crm: RunningService, tmp_path: Path, words: tuple[str, ...]) -> None:
    pipe = tmp_path / "firms.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(FIRMS), daemon=True)
    writer.start()
    ended = run_crmctl(*words, pipe).ok()
    writer.join(PATIENCE)
    assert not writer.is_alive()
    if words[-1] == "companies":
        summary = ended.json()
        assert (summary["created"], count()) == (30, 30)
        run_crmctl("bulk", "resume", summary["job"]).ok()
        assert [path.name for path in Path(summary["files"]["ok"]).parent.glob("input")] == ["input"]


def test_ids_and_data_come_through_pipes_too(crm: RunningService, tmp_path: Path) -> None:
    run_crmctl("bulk", "import", "companies", "-", input=FIRMS).ok()
    ids, data = tmp_path / "ids", tmp_path / "data"
    for pipe, text in (
        (ids, run_crmctl("records", "list", "companies", "--limit", "30", "-o", "ids").ok().out),
        (data, '{"name": "Piped"}'),
    ):
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=(text,), daemon=True).start()
    assert run_crmctl("bulk", "delete", "companies", "--ids", ids, "--yes").ok().json()["deleted"] == 30
    run_crmctl("records", "create", "companies", "--data", f"@{data}").ok()
    assert count() == 1


def test_a_plan_of_a_pipe_is_refused_and_its_input_may_come_from_one(crm: RunningService, tmp_path: Path) -> None:
    pipe, file, plan = tmp_path / "pipe", tmp_path / "firms.csv", tmp_path / "firms.plan"
    os.mkfifo(pipe)
    refused = run_crmctl("bulk", "import", "companies", pipe, "--plan", plan).exits(2)
    assert refused.error()["code"] == "unusable_input"
    file.write_text(FIRMS)
    run_crmctl("bulk", "import", "companies", file, "--key", "name", "--plan", plan).ok()
    threading.Thread(target=pipe.write_text, args=(FIRMS,), daemon=True).start()
    assert run_crmctl("bulk", "apply", plan, "--input", pipe).ok().json()["created"] == 30


def test_an_argument_that_is_no_file_is_named(crm: RunningService, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        kinds = {tmp_path: "a directory", tmp_path / "s": "a socket", Path("/dev/zero"): "a device", tmp_path / "no": "no such file"}
        crm.log.clear()
        for path, kind in kinds.items():
            for words in (
                ("bulk", "import", "companies"),
                ("bulk", "inspect"),
                ("bulk", "apply"),
                ("bulk", "delete", "companies", "--ids"),
            ):
                refused = run_crmctl(*words, path, *(("--yes",) if "--ids" in words else ())).exits(2)
                assert f"cannot read {path}" in refused.error()["message"]
                assert kind in refused.error()["message"]
    assert not crm.log


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("length", [64 * 1024 - 1, 200 * 1024])
def test_result_files_have_the_line_ends_of_the_input(crm: RunningService, tmp_path: Path, end: str, length: int) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(f"email,{'x' * (length - 6)}{end}nobody,{end}".encode())
    stopped = run_crmctl("bulk", "import", "people", file, "--ignore-unknown").exits(9).json()
    written = Path(stopped["files"]["failed"]).read_bytes().decode()
    assert (written.count(end), len(written.split(end)), len(written.splitlines())) == (2, 3, 2)
