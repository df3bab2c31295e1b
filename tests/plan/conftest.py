"""One service for the merges of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl.client.crm import Crm
from tests.support.answeringapp import answering_app, quick_folder


@pytest.fixture(scope="module")
def crm() -> Iterator[Crm]:
    with quick_folder() as folder, answering_app(Path(folder) / "service") as client:
        yield client
