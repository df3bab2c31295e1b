"""Files appear whole or not at all, also on a full disk: the error names the place, and crmctl leaves nothing behind."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from crmctl.errors import ExitCode, StorageError, UsageError, storage_error
from crmctl.files.whole_files import check_place, whole_bytes, whole_file


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Imitate a full disk: no file of this process grows beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_full_disk_is_named_and_leaves_no_part(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("before")
    with files_of_at_most(7), pytest.raises(StorageError) as failed, whole_file(path) as text:
        text.write("something longer than that\n" * 1000)
    assert failed.value.message == f"no space left on the disk of {path}"
    assert (failed.value.code, failed.value.exit_code) == ("no_space", ExitCode.USAGE)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert path.read_text() == "before"


def test_an_error_of_the_writer_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_bytes(tmp_path / "rows"):
        (tmp_path / "nothing").open()
    assert not list(tmp_path.iterdir())


def test_databases_say_it_in_their_own_way(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as small:
        small.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.Error) as full:
            small.execute("CREATE TABLE a AS SELECT zeroblob(100000)")
    assert_code(full.value, tmp_path / "journal", "no_space")
    (tmp_path / "journal").write_bytes(b"no database at all, but as long as the head of one would be" * 20)
    with closing(sqlite3.connect(tmp_path / "journal")) as spoiled, pytest.raises(sqlite3.Error) as damaged:
        spoiled.execute("SELECT * FROM sqlite_master")
    assert_code(damaged.value, tmp_path / "journal", "damaged_file")
    assert_code(OSError(errno.EIO, "Input/output error"), tmp_path / "journal", "unwritable_file")
    for error in (ValueError("a bug"), FileNotFoundError(errno.ENOENT, "No such file")):
        assert storage_error(error, tmp_path) is error
        assert isinstance(storage_error(error, tmp_path, UsageError("no")), UsageError)


def assert_code(error: Exception, path: Path, code: str) -> None:
    named = storage_error(error, path)
    assert isinstance(named, StorageError)
    assert (named.code, str(path) in named.message) == (code, True)


def test_a_pipe_named_by_a_link_is_written_directly() -> None:
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    check_place(path)
    with whole_file(path) as stream:
        stream.write("through")
    os.close(writer)
    with os.fdopen(reader) as read:
        assert read.read() == "through"


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="form a loop"):
        check_place(loop)
    with pytest.raises(UsageError, match="form a loop"), whole_file(loop):
        pass
    assert loop.is_symlink()
