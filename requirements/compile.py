"""Writes locked.txt: the exact version and hashes of everything pyproject.toml names (all extras and the build system), for Python 3.11 and newer.

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
OPTIONS = ["--all-extras", "--universal", "--python-version=3.11", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]


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
