"""Pin exact versions and hashes from Python 3.11 on, one file for each purpose.

Run by `make requirements`. Needs uv. No address of a package index ends up in the files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parent / "pyproject.toml"
RESOLUTION = ["--universal", "--python-version=3.11", "--system-certs"]
FILES = {"locked.txt": ["test"], "program.txt": ["service"], "image.txt": ["service", "postgres", "s3"], "release.txt": ["release"]}
"""The extras of each file: for tests and checks, for `make demo`, for the image, and for `make dist` and `make site`."""
OPTIONS = [*RESOLUTION, "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]


def main() -> None:
    """Versions already locked are kept unless pyproject.toml or an argument such as `--upgrade` says otherwise."""
    for name, extras in FILES.items():
        same = ["--constraint=requirements/locked.txt", "--no-annotate"] if name != "locked.txt" else []
        compile_pins(name, *(f"--extra={extra}" for extra in extras), *same, *sys.argv[1:])


def compile_pins(name: str, *arguments: str) -> None:
    """Write the file `name` with the build system and what `arguments` choose of the project."""
    build_system = tomllib.loads(PROJECT.read_text())["build-system"]["requires"]
    subprocess.run(
        ["uv", "pip", "compile", PROJECT.name, "-", *OPTIONS, "--output-file", HERE / name, *arguments],
        cwd=HERE.parent,
        input="\n".join(build_system),
        env={**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make requirements"},
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main()
