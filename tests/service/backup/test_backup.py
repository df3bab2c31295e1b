"""Backups made while clients write, and their restoration, with the installed program and on both engines."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import random
import signal
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from crmctl.clock import SystemClock
from crmctl.errors import ConfigError, CrmctlError, RejectedError
from crmctl.service.backup.backup import MANIFEST, add_member, restore_backup, unpack
from crmctl.service.context import UNFINISHED, ServiceSettings, open_data
from crmctl.service.store.engine import has_data
from tests.support.cli import CRMCTL, run_crmctl
from tests.support.databases import ENGINES, fresh_database
from tests.support.killed_restore import MOMENTS
from tests.support.postgres import database_of
from tests.support.service import RunningService, make_client, running_service

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "data").mkdir()
    with fresh_database(request, tmp_path / "data") as url:
        yield url


@pytest.fixture
def empty_place(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[list[str]]:
    """Options of the command line for an empty place to restore to."""
    options = ["--data", str(tmp_path / "restored")]
    if database.startswith("sqlite"):
        yield options
        return
    server = request.getfixturevalue("postgres")
    url = server.create_database()
    yield [*options, "--database-url", url]
    server.drop_database(url)


@pytest.fixture
def more_databases(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Return a function that creates further empty databases."""
    with contextlib.ExitStack() as stack:

        def make() -> str:
            server = request.getfixturevalue("postgres")
            url = str(server.create_database())
            stack.callback(server.drop_database, url)
            return url

        yield make


@pytest.fixture
def crm(database: str, tmp_path: Path) -> Iterator[RunningService]:
    url = None if database.startswith("sqlite") else database
    with running_service(tmp_path / "data", database_url=url, background=False) as service:
        yield service


def place_options(crm: RunningService) -> list[str]:
    url = crm.settings.database_url
    return ["--data", str(crm.data_dir), *(["--database-url", url] if url else [])]


def furnish(crm: RunningService) -> None:
    """Create an object with a deleted attribute, records, and an uploaded file."""
    made = crm.client.post("/api/v1/objects", json={"pluralName": "Things", "slug": "things"}).json()["id"]
    path = f"/api/v1/objects/{made}"
    unique = {"name": "Code", "type": "text", "isRequired": False, "isUnique": True}
    gone, _ = (crm.client.post(f"{path}/attributes", json={**unique, "name": name}).json()["id"] for name in ("Old", "Code"))
    crm.client.delete(f"{path}/attributes/{gone}")
    data = [{"data": {"code": f"tab\there {number}\\ \u00e9\n"}} for number in range(50)]
    assert crm.client.post(f"{path}/records/bulk", json={"records": data}).json()["created"] == 50
    signed = crm.client.post("/api/v1/files/upload-url", json={"path": "a/b.txt", "bucket": "files"}).json()
    assert crm.client.put(signed["signedUrl"], content=b"hello", headers={"Content-Type": "text/plain"}).status_code == 200


def contents(service: Any) -> dict[str, Any]:
    """Return everything a client can see."""
    found: dict[str, Any] = {"members": service.get("/api/v1/members").json()}
    for crm_object in service.get("/api/v1/objects").json()["objects"]:
        found[crm_object["slug"]] = service.get(f"/api/v1/objects/{crm_object['id']}").json()
        found[f"{crm_object['slug']} records"] = service.get(f"/api/v1/objects/{crm_object['id']}/records", params={"limit": 100}).json()
    return found


def test_a_backup_made_during_writes_restores_everything(
    crm: RunningService, empty_place: list[str], database: str, tmp_path: Path
) -> None:
    furnish(crm)
    seen, file, stop = contents(crm.client), tmp_path / "crm.backup", threading.Event()
    people = f"/api/v1/objects/{crm.object_id('people')}/records"

    def write() -> None:
        with make_client(crm.base_url, crm.key) as client:
            while not stop.is_set():
                client.post(f"{people}/bulk", json={"records": [{"data": {"score": 1}}] * 10})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = run_crmctl("service", "backup", file, *place_options(crm), "-o", "json").ok().json()
    finally:
        stop.set()
        writer.join()
    assert (made["files"], made["bytes"], made["records"] % 10) == (1, file.stat().st_size, 0)
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    checked = run_crmctl("service", "restore", file, *empty_place, "--dry-run", "-o", "json").ok().json()
    assert checked["records"] == made["records"]
    restored = run_crmctl("service", "restore", file, *empty_place, "-o", "json").ok().json()
    assert restored["records"] == made["records"]
    url = empty_place[3] if len(empty_place) > 2 else None
    with running_service(Path(empty_place[1]), database_url=url, background=False) as again, make_client(again.base_url, crm.key) as client:
        found = contents(client)
        total = found["people records"]["pagination"]["total"]
        assert total + 50 == made["records"]
        assert found == seen | {"people records": found["people records"]}
        assert client.get(f"{again.base_url}/files/files/a/b.txt").content == b"hello"
        # Counters continue where they stopped, on either engine.
        things = next(crm_object["id"] for crm_object in client.get("/api/v1/objects").json()["objects"] if crm_object["slug"] == "things")
        taken = client.post(f"/api/v1/objects/{things}/records", json={"data": {"code": "tab\there 3\\ \u00e9\n"}})
        assert taken.status_code == 409
        assert client.post("/api/v1/objects", json={"pluralName": "More", "slug": "more"}).status_code == 201
        assert client.post(f"/api/v1/objects/{things}/records", json={"data": {"code": "new"}}).status_code == 201
    run_crmctl("service", "restore", file, *empty_place).exits(2)


def content_of(packed: bytes) -> bytes | None:
    with contextlib.suppress(OSError, EOFError, zlib.error):
        return gzip.decompress(packed)
    return None


def test_an_incomplete_or_damaged_backup_is_refused(crm: RunningService, tmp_path: Path) -> None:
    file = tmp_path / "crm.backup"
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    whole = file.read_bytes()
    chance = random.Random(7)
    damaged = tmp_path / "damaged"
    # The file name in gzip's header comes first and is not part of the backup.
    after_name = whole.index(b"\0", 10) + 1
    for length in (0, 1, 10, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(5))):
        damaged.write_bytes(whole[:length])
        with pytest.raises(RejectedError):
            unpack(damaged, None)
    for _ in range(10):
        place = chance.randrange(after_name, len(whole))
        flipped = whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        damaged.write_bytes(flipped)
        if content_of(flipped) == content_of(whole):
            continue  # one of the bits that pad a byte
        with pytest.raises(RejectedError):
            unpack(damaged, None)
    damaged.write_bytes(whole[: len(whole) // 2])
    refused = run_crmctl("service", "restore", damaged, "--data", tmp_path / "new", "-o", "json").exits(9).error()
    assert refused["code"] == "damaged_backup"
    assert not list((tmp_path / "new").iterdir())


def test_a_killed_backup_keeps_the_previous_file(crm: RunningService, tmp_path: Path) -> None:
    file = tmp_path / "crm.backup"
    file.write_text("the backup before")
    process = subprocess.Popen(
        [CRMCTL, "service", "backup", file, *place_options(crm)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while not list(tmp_path.glob(".crm.backup.*.partial/*")) and process.poll() is None:
        threading.Event().wait(0.002)
    process.kill()
    process.wait()
    assert file.read_text() == "the backup before" or unpack(file, None)
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    assert unpack(file, None)["records"] == 0


@pytest.mark.campaign
def test_a_killed_restore_is_not_served_and_can_be_repeated(
    crm: RunningService, empty_place: list[str], tmp_path: Path, more_databases: Callable[[], str]
) -> None:
    furnish(crm)
    file = tmp_path / "crm.backup"
    made = run_crmctl("service", "backup", file, *place_options(crm), "-o", "json").ok().json()
    for number, moment in enumerate(MOMENTS):
        place, url = tmp_path / f"place{number}", more_databases() if len(empty_place) > 2 else None
        settings = ServiceSettings(data_dir=place, database_url=url)
        options = [str(file), str(place), *([url] if url else [])]
        killed = subprocess.run([sys.executable, "-m", "tests.support.killed_restore", moment, *options], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL, moment
        assert list(place.glob(UNFINISHED)), moment
        if moment == "database there":
            with pytest.raises(CrmctlError, match="already"):
                restore_backup(file, settings)
        else:
            assert not has_data(settings.engine_url), moment
            with pytest.raises(ConfigError, match="not finished"):
                open_data(settings, SystemClock())
            assert not has_data(settings.engine_url), "has_data creates nothing"
            assert restore_backup(file, settings)["records"] == made["records"]
            assert not list(place.glob(UNFINISHED)), moment
        with running_service(place, database_url=url, background=False) as again, make_client(again.base_url, crm.key) as client:
            assert contents(client) == contents(crm.client), moment
            assert client.get(f"{again.base_url}/files/files/a/b.txt").content == b"hello", moment


def test_a_restore_keeps_foreign_files_and_data(crm: RunningService, empty_place: list[str], tmp_path: Path) -> None:
    furnish(crm)
    file, place = tmp_path / "crm.backup", Path(empty_place[1])
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    (stranger := place / "files" / "ab" / ("f" * 32)).parent.mkdir(parents=True)
    stranger.write_text("somebody's")
    assert "not in the backup" in run_crmctl("service", "restore", file, *empty_place, "-o", "json").exits(2).error()["message"]
    assert stranger.read_text() == "somebody's"
    stranger.unlink()
    settings = ServiceSettings(data_dir=place, database_url=empty_place[3] if len(empty_place) > 2 else None)
    open_data(settings, SystemClock()).close()
    assert "already" in run_crmctl("service", "restore", file, *empty_place, "-o", "json").exits(2).error()["message"]


def test_an_interrupted_restore_leaves_no_files(crm: RunningService, empty_place: list[str], tmp_path: Path) -> None:
    furnish(crm)
    file, place = tmp_path / "crm.backup", Path(empty_place[1])
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    settings = ServiceSettings(data_dir=place, database_url=empty_place[3] if len(empty_place) > 2 else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crmctl.service.backup.backup.load_copy", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(file, settings)
    assert [path for path in place.rglob("*") if path.is_file()] == list(place.glob(UNFINISHED)) == []
    open_data(settings, SystemClock()).close()


def test_a_restore_that_loses_its_database_leaves_no_files_or_a_marker(
    crm: RunningService, empty_place: list[str], tmp_path: Path, more_databases: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    furnish(crm)
    file = tmp_path / "crm.backup"
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    for moment in ("goes", "goes as it commits", "stays away") if len(empty_place) > 2 else ("is full",):
        url = more_databases() if len(empty_place) > 2 else None
        settings = ServiceSettings(data_dir=(place := tmp_path / moment), database_url=url)
        failing = pytest.raises(CrmctlError, match=r"the database failed|no space left")
        with pytest.MonkeyPatch.context() as patch, lost_database(patch, request, settings, moment), failing:
            restore_backup(file, settings)
        assert not has_data(settings.engine_url), moment
        assert bool([path for path in place.rglob("*") if path.is_file()]) == (moment == "stays away")
        if moment == "stays away":
            with pytest.raises(ConfigError, match="not finished"):
                open_data(settings, SystemClock())
        assert restore_backup(file, settings)["files"] == 1
        assert not list(place.glob(UNFINISHED))
        assert len([path for path in (place / "files").rglob("*") if path.is_file()]) == 1
        open_data(settings, SystemClock()).close()


@contextlib.contextmanager
def lost_database(patch: pytest.MonkeyPatch, request: pytest.FixtureRequest, settings: ServiceSettings, moment: str) -> Iterator[None]:
    """Make a restore lose its database once everything is copied; the database answers again afterwards."""
    url = settings.database_url
    if url is None:
        patch.setattr("crmctl.service.store.engine.place_file", _full)
        yield
        return
    server = request.getfixturevalue("postgres")

    def let_in(who: str) -> None:
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {database_of(url)} ALLOW_CONNECTIONS {who}")

    def lose(connection: Any, _: Any) -> None:
        if moment == "goes as it commits":
            connection.execute("CREATE TABLE doomed (n INTEGER)")
            ending = "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'"
            connection.execute(f"CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS {ending}")
            late = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()"
            connection.execute(f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON doomed {late}")
            connection.execute("INSERT INTO doomed VALUES (1)")
            return
        if moment == "stays away":
            let_in("false")
        server.end_connections(url)
        connection.execute("SELECT 1")

    patch.setattr("crmctl.service.store.postgres._make_indexes", lose)
    try:
        yield
    finally:
        let_in("true")


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_backup_of_a_newer_version_is_refused_and_writes_nothing(crm: RunningService, empty_place: list[str], tmp_path: Path) -> None:
    furnish(crm)
    file, folder, newer = tmp_path / "crm.backup", tmp_path / "unpacked", tmp_path / "newer.backup"
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    manifest = unpack(file, folder)
    manifest["database"]["schemaVersion"] += 1
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with tarfile.open(newer, "w:gz") as archive:
        for part in sorted(path for path in folder.rglob("*") if path.is_file()):
            add_member(archive, part.relative_to(folder).as_posix(), part)
    refused = run_crmctl("service", "restore", newer, *empty_place, "-o", "json")
    assert refused.code in (2, 9), refused.err
    assert "upgrade crmctl" in refused.error()["hint"]
    assert [path for path in Path(empty_place[1]).rglob("*") if path.is_file()] == []


def test_wrong_places_are_refused_with_a_reason(crm: RunningService, tmp_path: Path) -> None:
    file = tmp_path / "crm.backup"
    run_crmctl("service", "backup", file, "--data", tmp_path / "nothing").exits(2)
    assert not (tmp_path / "nothing").exists()
    refused = run_crmctl("service", "restore", "deals", *place_options(crm), "-o", "json").exits(2).error()
    assert "--as-of" in refused["hint"]
    run_crmctl("service", "backup", file, *place_options(crm)).ok()
    taken = run_crmctl("service", "restore", file, *place_options(crm), "-o", "json")
    assert taken.code in (2, 9)
    assert "already" in taken.error()["message"]
