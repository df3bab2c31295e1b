"""Memory stays flat: a long file needs as much as a short one, apart from a few blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import resource, sys
from pathlib import Path
from crmctl.files.sources import open_source
rows = sum(1 for _ in open_source(Path(sys.argv[1])).rows())
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

VALIDATE = """
import resource, sys
from pathlib import Path
from crmctl.files.mapping import MappingOptions, build_mapping
from crmctl.files.sources import open_source
from crmctl.files.payloads import RowBuilder
from crmctl.files.validation import validate
from crmctl.files.cell_values import ValueOptions
from crmctl.models.resources import Attribute
types = {"a": "number", "b": "email", "c": "text"}
attributes = [Attribute.parse({"id": slug, "slug": slug, "type": kind, "isUnique": slug == "b"}) for slug, kind in types.items()]
source = open_source(Path(sys.argv[1]))
report = validate(source, RowBuilder(build_mapping(source.header, attributes, MappingOptions()), attributes, ValueOptions()))
assert report.rejected == report.rows // 2, report.to_document()["counts"]
print(report.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak(program: str, path: Path) -> tuple[int, int]:
    """Return the rows read and the peak of megabytes of a fresh process."""
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    rows, megabytes = map(int, run.stdout.split())
    return rows, megabytes


def write(path: Path, rows: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        if path.suffix == ".csv":
            file.write("a,b,c\n")
            file.writelines(f'{row if row % 2 else "x"},p{row}@example.com,"some, text\nof row {row}"\n' for row in range(rows))
        else:
            mark = path.suffix == ".json"
            file.write("[" if mark else "")
            file.writelines(
                f'{"," if mark and row else ""}{{"a": {row}, "b": "p{row}@example.com"}}{"" if mark else chr(10)}' for row in range(rows)
            )
            file.write("]" if mark else "")
    return path


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("program", "suffix", "rows"), [(READ, "csv", 150_000), (READ, "json", 100_000), (READ, "jsonl", 100_000), (VALIDATE, "csv", 50_000)]
)
def test_the_peak_does_not_grow_with_the_file(tmp_path, program, suffix, rows):
    short = peak(program, write(tmp_path / f"short.{suffix}", 5_000))
    long = peak(program, write(tmp_path / f"long.{suffix}", rows))
    assert (short[0], long[0]) == (5_000, rows)
    assert long[1] - short[1] < 24
