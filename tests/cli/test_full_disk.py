"""A disk that fills at any byte: crmctl reports it, with the summary if there is a job. Resuming with room loses and doubles nothing."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import CRMCTL, Result, environment, run_crmctl, without_coverage
from tests.support.patience import PATIENCE
from tests.support.service import RunningService
from tests.support.smalldisk import limit_free_space, small_disk

ROWS = 250


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as found:
        if found is None:
            pytest.skip("no file system can be mounted here")
        yield found


def firms(tag: str) -> str:
    return "Name\n" + "".join(f"{tag}-{n:04}\n" for n in range(ROWS))


def names(crm: RunningService) -> list[str]:
    listed = run_crmctl("records", "list", "companies", "--all", "-q", "[].data.name").ok().json()
    return sorted(listed)


def assert_said(ended: Result, *, has_job: bool) -> None:
    error = ended.exits(2).error()
    assert "no space left on" in error["message"]
    assert error["code"] == "no_space"
    if has_job:
        summary = ended.json()
        assert f"crmctl bulk resume {summary['job']}" == error["hint"]
        assert sum(summary[name] for name in ("created", "unsent", "inDoubt", "failed")) == summary["rows"]


@pytest.mark.parametrize("room", [0, 4096, 16_384, 65_536, 131_072, 163_840, 196_608, 229_376])
def test_an_import_resumes_where_a_full_disk_ended_it(crm: RunningService, disk: Path, room: int) -> None:
    env = {"CRMCTL_STATE_DIR": str(disk / "state")}
    with limit_free_space(disk, room):
        ended = run_crmctl("bulk", "import", "companies", "-", env=env, input=firms("a"))
        if ended.code:
            assert_said(ended, has_job=bool(ended.out))
    jobs = run_crmctl("bulk", "jobs", env=env).ok().json()
    if ended.code and jobs:
        assert jobs[0]["job"] == ended.json()["job"]
        run_crmctl("bulk", "resume", jobs[0]["job"], "--settle", "1", env=env).ok()
    elif ended.code:
        run_crmctl("bulk", "import", "companies", "-", env=env, input=firms("a")).ok()
    assert names(crm) == sorted(firms("a").split()[1:])


def test_a_job_that_a_full_disk_hides_is_not_called_damaged(crm: RunningService, disk: Path) -> None:
    env = {"CRMCTL_STATE_DIR": str(disk / "state")}
    job = run_crmctl("bulk", "import", "companies", "-", env=env, input=firms("a")).ok().json()["job"]
    with limit_free_space(disk, 0):
        listed = run_crmctl("bulk", "jobs", env=env).ok()
        assert listed.err.startswith(f"warning: job {job} cannot be opened: no space left on the disk of ")
        for command in (("jobs", job), ("resume",), ("resume", job), ("undo", job, "--yes")):
            error = run_crmctl("bulk", *command, env=env).exits(2).error()
            assert "no space left on" in error["message"]
            assert error["hint"] == "free some space, then run the command again"
    assert [one["job"] for one in run_crmctl("bulk", "jobs", env=env).ok().json()] == [job]


@pytest.mark.parametrize("room", [512, 20_000, 70_000])
def test_a_limit_on_file_sizes_acts_like_a_full_disk(crm: RunningService, tmp_path: Path, room: int) -> None:
    """Stand in for a full disk on machines that cannot mount one."""

    def limit() -> None:
        """Limit the program's process only; the service runs in this one."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    arguments = ("bulk", "import", "companies", "-")
    ran = subprocess.run(
        [CRMCTL, *arguments],
        input=firms("b").encode(),
        env=without_coverage(environment()),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=limit,
    )
    ended = Result(arguments, ran.returncode, ran.stdout.decode(), ran.stderr.decode())
    assert ended.code in (0, 2)
    assert "a bug" not in ended.err
    if ended.code:
        assert "no space left" in ended.error()["message"] or "cannot " in ended.error()["message"]
        jobs = run_crmctl("bulk", "jobs").ok().json()
        if jobs:
            run_crmctl("bulk", "resume", jobs[0]["job"], "--settle", "1").ok()
        else:
            run_crmctl("bulk", "import", "companies", "-", input=firms("b")).ok()
    assert names(crm) == sorted(firms("b").split()[1:])


def test_a_copy_of_failed_rows_without_room_ends_with_the_summary(crm: RunningService, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "firms.csv").write_text(firms("c") + ",\n")
    with limit_free_space(disk, 0):
        ended = run_crmctl(
            "bulk", "import", "companies", tmp_path / "firms.csv", "--on-error", "continue", "--failed", disk / "failed.csv"
        ).exits(2)
    summary, error = ended.json(), ended.error()
    assert (summary["created"], summary["rejected"]) == (ROWS, 1)
    assert error["message"] == f"no space left on the disk of {disk / 'failed.csv'}"
    assert error["hint"] == f"{summary['files']['failed']} holds the rows and the reasons"
    assert Path(summary["files"]["failed"]).exists()
    assert not (disk / "failed.csv").exists()


def test_the_place_for_results_is_tested_before_the_first_request(crm: RunningService, tmp_path: Path) -> None:
    (tmp_path / "firms.csv").write_text(firms("d"))
    crm.log.clear()
    for place in (tmp_path, tmp_path / "nowhere" / "failed.csv", tmp_path / "firms.csv"):
        refused = run_crmctl("bulk", "import", "companies", tmp_path / "firms.csv", "--failed", place).exits(2)
        assert str(place) in refused.error()["message"]
    (tmp_path / "state").write_text("not a directory")
    refused = run_crmctl("bulk", "import", "companies", tmp_path / "firms.csv", env={"CRMCTL_STATE_DIR": str(tmp_path / "state")}).exits(2)
    assert str(tmp_path / "state") in refused.error()["message"]
    assert not crm.log


@pytest.fixture
def known(crm: RunningService) -> list[str]:
    """Return the names of the service's 250 companies."""
    run_crmctl("bulk", "import", "companies", "-", input=firms("k")).ok()
    return sorted(firms("k").split()[1:])


@pytest.mark.parametrize(("room", "file"), [(0, "all.csv"), (16_384, "all.xlsx"), (90_000, "all.jsonl.gz")])
def test_an_export_leaves_nothing_under_its_name_and_resumes_with_room(known: list[str], disk: Path, room: int, file: str) -> None:
    with limit_free_space(disk, room):
        ended = run_crmctl("bulk", "export", "companies", "-O", disk / file)
        assert_said(ended, has_job=False)
        assert str(disk / file) in ended.error()["message"]
        assert not (disk / file).exists()
    assert run_crmctl("bulk", "export", "companies", "-O", disk / file).ok().json()["rows"] == len(known)
    assert sorted(one.name for one in disk.iterdir()) == [file, f"{file}.manifest.json"]


def test_a_mirror_without_room_stays_unchanged(crm: RunningService, disk: Path) -> None:
    env = {"CRMCTL_STATE_DIR": str(disk / "state")}
    with limit_free_space(disk, 0):
        assert_said(run_crmctl("mirror", "sync", "companies", env=env), has_job=False)
    run_crmctl("mirror", "sync", "companies", env=env).ok()
    run_crmctl("bulk", "import", "companies", "-", input=firms("m" * 400)).ok()
    with limit_free_space(disk, 0):
        assert_said(run_crmctl("mirror", "sync", "companies", env=env), has_job=False)
    run_crmctl("mirror", "sync", "companies", env=env).ok()
    asked = run_crmctl("mirror", "sql", "SELECT count(*) AS n FROM companies", env=env).ok().json()
    assert asked == [{"n": ROWS}]


def test_copies_are_stored_before_any_change(known: list[str], crm: RunningService, disk: Path) -> None:
    """The copy of deleted records, a plan, a setting, a key, a backup of a service: crmctl names the file and leaves none half-written."""
    (disk / "ids").write_text(run_crmctl("records", "list", "companies", "--all", "-o", "ids").ok().out)
    run_crmctl("mirror", "sync", "companies").ok()
    config = {"CRMCTL_CONFIG_DIR": str(disk / "config")}
    run_crmctl("config", "set", "output", "json", env=config).ok()
    before = (disk / "config" / "config.toml").read_text()
    commands: list[tuple[tuple[str | Path, ...], dict[str, str]]] = [
        (("bulk", "delete", "companies", "--ids", disk / "ids", "--yes", "--backup", disk / "backup.jsonl"), {}),
        (("bulk", "delete", "companies", "--ids", disk / "ids", "--yes"), {"CRMCTL_STATE_DIR": str(disk / "state")}),
        (("bulk", "update", "companies", "--ids", disk / "ids", "--set", "name=x", "--yes"), {"CRMCTL_STATE_DIR": str(disk / "state")}),
        (("bulk", "import", "companies", disk / "firms.csv", "--plan", disk / "import.plan"), {}),
        (("bulk", "dedupe", "companies", "--match", "name~0.5", "--max-group", "1000", "--plan", disk / "merge.plan"), {}),
        (("config", "set", "timeout", "5"), config),
        (("service", "backup", disk / "service.backup", "--data", crm.data_dir), {}),
    ]
    (disk / "firms.csv").write_text(firms("n"))
    with limit_free_space(disk, 0):
        for words, env in commands:
            assert_said(run_crmctl(*words, env=env), has_job=False)
        listed = run_crmctl("records", "list", "companies", "--limit", "1", env={"CRMCTL_STATE_DIR": str(disk / "state")}).ok()
        assert "the shared rate budget is unusable (no space left on the disk of " in listed.err
        run_crmctl("records", "list", "companies", "--limit", "1", env={"CRMCTL_CACHE_DIR": str(disk / "cache")}).ok()
    assert names(crm) == known
    assert (disk / "config" / "config.toml").read_text() == before
    assert {one.name for one in disk.iterdir()} <= {"ids", "config", "firms.csv", "state", "cache"}


@pytest.mark.parametrize("room", [0, 8192, 40_960])
def test_a_service_that_cannot_start_names_the_disk(disk: Path, room: int) -> None:
    with limit_free_space(disk, room):
        assert_said(run_crmctl("serve", "--port", "0", "--data", str(disk / "data")), has_job=False)


def test_a_service_whose_ready_file_does_not_fit_ends_and_leaves_no_part_of_it(disk: Path, tmp_path: Path) -> None:
    with limit_free_space(disk, 0):
        assert_said(
            run_crmctl("serve", "--port", "0", "--data", str(tmp_path / "data"), "--ready-file", str(disk / "ready.json")), has_job=False
        )
        assert [path.name for path in disk.iterdir()] == ["ballast"]
