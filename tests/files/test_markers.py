"""Markers: what they look like, and that no group's prefix finds another group's rows."""

from __future__ import annotations

import re

import pytest

from crmctl.errors import UsageError
from crmctl.files.payloads import Marker, check_marker
from tests.support.bulkfiles import attribute

MARKER = Marker.of("ref", "20270115-abcde")


def test_a_marker_is_made_of_job_group_and_row() -> None:
    assert re.fullmatch(r"[0-9a-f]{8}\.1\.1", MARKER.text(1))
    assert MARKER.text(1200).endswith(".12.1200")
    assert MARKER.text(7) == Marker.of("ref", "20270115-abcde").text(7) != Marker.of("ref", "20270115-abcdf").text(7)


def test_one_group_is_not_the_beginning_of_another() -> None:
    texts = [MARKER.text(row) for row in range(1, 2501)]
    for row in (1, 100, 101, 950, 1000, 2500):
        (prefix,) = MARKER.prefixes([row])
        group = [text for text in texts if text.startswith(prefix)]
        assert len(group) == 100
        assert MARKER.text(row) in group
    assert not any(text.startswith(MARKER.prefix(0)) for text in texts)


def test_only_a_plain_text_attribute_that_nothing_fills_holds_markers() -> None:
    attributes = [attribute("ref"), attribute("n", "number"), attribute("tags", isList=True)]
    check_marker("ref", attributes, ["n"])
    for slug, filled in (("n", []), ("tags", []), ("nothing", []), ("ref", ["ref"])):
        with pytest.raises(UsageError):
            check_marker(slug, attributes, filled)
