"""Carry out the Containerfile in the root of a bare Debian, and run its service there: as its user, on a read-only root.

`.ci/image.py ROOT SOURCE`, as root and in a mount namespace; SOURCE is the checkout inside ROOT. Both stages share the root.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path


def instructions(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(kind, rest.strip()) for kind, _, rest in (line.partition(" ") for line in lines if line)]


def build(root: Path, source: str, steps: list[tuple[str, str]]) -> dict[str, str]:
    """Carry out the steps that change the root, and return the variables of the image."""
    variables: dict[str, str] = {}
    folder = "/"
    for kind, rest in steps:
        if kind == "WORKDIR":
            folder = rest
        elif kind == "COPY" and not rest.startswith("--from"):
            subprocess.run(["cp", "-r", f"{root}{source}", f"{root}{folder}"], check=True)
        elif kind == "RUN":
            subprocess.run(["chroot", root, "sh", "-ec", f"cd {folder}; {rest}"], env={**os.environ, "HOME": "/tmp"}, check=True)
        elif kind == "FROM":
            folder = "/"
        elif kind == "ENV":
            variables |= dict(word.split("=", 1) for word in rest.split())
    return variables


def serve(root: Path, steps: dict[str, str], variables: dict[str, str]) -> None:
    """Start the service, ask for its health, and stop it."""
    view, data = Path(f"{root}.view"), steps["VOLUME"]
    view.mkdir()
    subprocess.run(["mount", "--rbind", root, view], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
    subprocess.run(["mount", "--bind", f"{root}{data}", f"{view}{data}"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        variables["CRMCTL_SERVE_PORT"] = str(listener.getsockname()[1])
    inside = ["chroot", f"--userspec={steps['USER']}", view, "env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    assert subprocess.run([*inside, "touch", "/usr/written"], stderr=subprocess.DEVNULL).returncode != 0, "the root can be written"
    command = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]
    with subprocess.Popen([*inside, *command], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            print(json.loads(service.stdout.readline())["baseUrl"])
            subprocess.run([*inside, *json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])], check=True)
        finally:
            service.terminate()
    assert service.returncode == 0, service.returncode
    assert Path(f"{root}{data}", "service.db").is_file()


if __name__ == "__main__":
    root, source = Path(sys.argv[1]), sys.argv[2]
    steps = instructions(Path(f"{root}{source}", "Containerfile").read_text())
    serve(root, dict(steps), build(root, source, steps))
