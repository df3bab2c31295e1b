"""Accepted buckets and paths: every ordinary file name, but none that means another place on some system."""

from __future__ import annotations

import pytest

from crmctl.service.faults import BadRequest
from crmctl.service.files.storage import check_bucket, normalise_path


@pytest.mark.parametrize("path", ["a", "a/b.txt", "..a", "a..b/c", "con1", "console.log", "a b", "%2e%2e/%00", "名前", "x" * 255, "ab:c"])
def test_ordinary_and_odd_names_stay_unchanged(path: str) -> None:
    assert normalise_path(path) == path


def test_paths_are_composed() -> None:
    assert normalise_path("cafe\u0301") == "caf\u00e9"


ABSOLUTE = ["/etc/passwd", "//host/share", "C:/x", "c:x", "\\\\host\\share", "a\\b", "..\\x"]
UPWARD = ["..", "../x", "a/../b", "a/..", ".", "a/./b", "a//b", "a/"]
INVISIBLE = ["", "a\x00b", "a\nb", "\x7f", "\ud800"]
WINDOWS = ["nul", "docs/CON.txt", "com1", "a/LPT¹.log", "AUX.tar.gz", "dot.", "a /b", " a"]
LONG = ["x" * 256, "ä" * 128, "x/" * 500 + "x"]


@pytest.mark.parametrize("path", [*ABSOLUTE, *UPWARD, *INVISIBLE, *WINDOWS, *LONG])
def test_paths_that_can_mean_another_place_are_refused(path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        normalise_path(path)
    assert refused.value.details == {"field": "path"}
    refused.value.message.encode()


@pytest.mark.parametrize("bucket", ["a", "public", "My_Bucket-1", "a.b", "x" * 63])
def test_valid_buckets_are_accepted(bucket: str) -> None:
    assert check_bucket(bucket) == bucket


@pytest.mark.parametrize("bucket", ["", ".", "..", "a..b", "-a", "a-", "a/b", "a b", "ä", "x" * 64, "a\n"])
def test_other_buckets_are_refused(bucket: str) -> None:
    with pytest.raises(BadRequest):
        check_bucket(bucket)
