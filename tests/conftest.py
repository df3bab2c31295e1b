"""Settings of every test: isolation from the machine, reproducible property tests, and programs a machine may lack."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis.configuration
import pytest

from crmctl.main import COLLECT_AFTER
from tests.support import isolation, programs

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("local", derandomize=True, deadline=None, database=None)  # benchmarks/ runs the rare cases
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")
# Its tables of characters take a second to compute. Each test has a working folder of its own, where it would not find them.
hypothesis.configuration.set_hypothesis_home_dir(Path(__file__).parents[1] / ".hypothesis")


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Start two workers more than there are processors: tests wait for disks and processes about as long as they compute."""
    return (yield) + 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--folder-seconds", action="store_true", help="say what each folder of tests costs, in processor seconds")


def pytest_configure(config: pytest.Config) -> None:
    isolation.use_memory()
    if config.getoption("--folder-seconds"):
        from tests.support.folder_seconds import FolderSeconds

        config.pluginmanager.register(FolderSeconds(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker begin with its share of the long tests; at the end, one of them would keep a worker busy while others are idle."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    bounds = [len(others) * number // count for number in range(count + 1)]
    items[:] = [item for number in range(count) for item in (*long[number::count], *others[bounds[number] : bounds[number + 1]])]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exempt imported and collected objects from garbage collection, which took a seventh of a run."""
    gc.disable()
    try:
        if "PYTEST_XDIST_WORKER" in os.environ and session.config.args == session.config.getini("testpaths"):
            _share_compilation(session.config.rootpath)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        gc.enable()


def _share_compilation(root: Path) -> None:
    """Import the tests, beginning at another place than the other workers: in a new checkout, each compiles a part of them for all."""
    number, count = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    files = sorted(root.glob("tests/**/test_*.py"))
    start = len(files) * number // count
    for file in files[start:] + files[:start]:
        with contextlib.suppress(Exception):  # pytest reports it
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_runtest_setup(item: pytest.Item) -> None:
    programs.require_programs(item)


@pytest.fixture(scope="session", autouse=True)
def _machine_out_of_reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Isolate session fixtures, too. Return the names of new folders; to find a free name, `mktemp` would read thousands of names."""
    with pytest.MonkeyPatch.context() as patch:
        isolation.clean_environment(patch)
        isolation.private_folders(patch, tmp_path_factory.mktemp("session"))
        isolation.only_loopback(patch)
        isolation.heed_interrupts()
        folder = tmp_path_factory.mktemp("isolation")
        yield (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _isolation(_machine_out_of_reach: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test its own home and working folder."""
    root = next(_machine_out_of_reach)
    (root / "work").mkdir(parents=True)
    isolation.private_folders(monkeypatch, root)
    monkeypatch.chdir(root / "work")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start one PostgreSQL server for all workers of the session."""
    from tests.support.postgres import shared_server

    folder = tmp_path_factory.getbasetemp()
    with shared_server(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: Any) -> str:
    """Return the name of a database with its organization set up."""
    from tests.support.databases import set_up_organisation
    from tests.support.postgres import database_of

    url = postgres.create_database()
    set_up_organisation(url)
    return database_of(url)
