"""Writes locked.txt: exact versions and hashes of all that pyproject.toml names, extras and build system included, from Python 3.11 on.

Run by `make requirements`. Needs uv. No address of a package index ends up in the file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LOCKED = HERE / "locked.txt"
PROJECT = HERE.parent / "pyproject.toml"
RESOLUTION = ["--all-extras", "--universal", "--python-version=3.11", "--system-certs"]
OPTIONS = [*RESOLUTION, "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]


def main() -> None:
    """Versions already locked are kept unless pyproject.toml or an argument such as `--upgrade` says otherwise."""
    build_system = tomllib.loads(PROJECT.read_text())["build-system"]["requires"]
    subprocess.run(
        ["uv", "pip", "compile", PROJECT.name, "-", *OPTIONS, "--output-file", LOCKED, *sys.argv[1:]],
        cwd=HERE.parent,
        input="\n".join(build_system),
        env={**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make requirements"},
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main()
