"""The demonstration: real `crmctl` processes against a real, throw-away service, each command shown before it runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from crmctl.cli.demo_comparison import compare
from crmctl.errors import CrmctlError, ServiceError
from crmctl.models import jsontext

CRMCTL = (sys.executable, "-m", "crmctl")
COUNT_COUNTRIES = (
    'import collections, json, sys; count = collections.Counter(person["data"]["address"]["country"] for person in json.load(sys.stdin)); '
    'print(*(f"{country} {n}" for country, n in count.most_common()), sep=", ")'
)
STARTED_SECONDS = 60
STOP_SECONDS = 15


@dataclass
class Demo:
    """One run in `folder`; `say` gets everything there is to see, a line or several at a time."""

    folder: Path
    say: Callable[[str], None]
    width: int = 100
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _service: subprocess.Popen[str] | None = None

    def play(self) -> dict[str, Any]:
        """All of it; returns `{"imported", "exported", "cells", "differences"}`. Raises the error of the first command that fails."""
        base_url, key = self.start_service()
        self.title("Sign in. The key comes from stdin, never from the command line.")
        self.run("auth", "login", "--base-url", base_url, "--with-key", "--insecure-storage", given=key)
        self.title("Prepare: one more attribute, and a company that everybody works for.")
        self.run("attributes", "create", "people", "--name", "Annual spend", "--type", "currency", quiet=True)
        company = jsontext.loads(self.run("records", "create", "companies", "--set", "name=Acme", "-o", "json", quiet=True))["id"]
        data = self.folder / "people.csv"
        data.write_bytes(files("crmctl.cli").joinpath("demo_data", "people.csv").read_bytes())
        self.title("Import 300 people from a CSV: first a look, then for real.")
        self.run("bulk", "import", "people", "people.csv", "--set", f"company={company}", "--dry-run")
        self.run("bulk", "import", "people", "people.csv", "--set", f"company={company}")
        self.title("List them, filtered, as a table.")
        shown = ("--fields", "name,email,score,annual_spend,birthday")
        self.run("records", "list", "people", "--filter", "email endsWith @acme.com", "--filter", "score>=60", "--limit", "6", *shown)
        self.title("Pipe JSON into another program.")
        self.pipe(("records", "list", "people", "--all", "-o", "json"), COUNT_COUNTRIES)
        self.title("Export everything, and compare it with the file that was imported.")
        self.run("bulk", "export", "people", "-O", "export.csv")
        result = compare(data, self.folder / "export.csv", company)
        self.say(f"{result['cells']:,} cells compared, {result['differences']:,} differences\n")
        return result

    def start_service(self) -> tuple[str, str]:
        """Start the embedded service; its address and the key of its first start."""
        self.title("Start a Customer Records Service on a free port, with its data in a temporary folder.")
        command = ("serve", "--data", "service", "--port", "0")
        self.show(command)
        self._service = subprocess.Popen(  # noqa: S603 - this very program
            [*CRMCTL, *command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        line = self._service.stdout.readline() if self._service.stdout else ""
        if not line:
            raise ServiceError(f"the service did not start: {self._complaint()}")
        ready = jsontext.loads(line)
        self.say(f"listening on {ready['baseUrl']}\n")
        return ready["baseUrl"], ready["apiKey"]

    def _complaint(self) -> str:
        said = self._service.stderr.read() if self._service and self._service.stderr else ""
        return said.strip().splitlines()[0] if said.strip() else "it said nothing"

    def stop_service(self) -> None:
        """End the service, if it runs; again is harmless."""
        if self._service is None:
            return
        self._service.terminate()
        try:
            self._service.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._service.kill()
            self._service.communicate()
        self._service = None

    def environment(self) -> dict[str, str]:
        """The user's own, without their crmctl settings: the demonstration touches nothing of theirs."""
        kept = {name: value for name, value in self.environ.items() if not name.startswith("CRMCTL_")}
        homes = {f"CRMCTL_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        return kept | homes | {"COLUMNS": str(self.width), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONUTF8": "1"}

    def title(self, text: str) -> None:
        self.say(f"\n# {text}\n")

    def show(self, command: tuple[str, ...], then: str = "") -> None:
        self.say(f"$ crmctl {shlex.join(command)}{then}\n")

    def run(self, *command: str, given: str = "", quiet: bool = False) -> str:
        """Show and run one command and print what it prints; returns its stdout. Raises when it fails."""
        self.show(command, " < key.txt" if given else "")
        format_asked = () if "-o" in command else ("-o", "table")
        done = subprocess.run(  # noqa: S603 - this very program
            [*CRMCTL, *command, *format_asked],
            cwd=self.folder,
            env=self.environment(),
            input=given,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if not quiet or done.returncode:
            self.say(done.stderr + done.stdout)
        if done.returncode:
            raise CrmctlError(f"crmctl {command[0]} {command[1]} ended with {done.returncode}", hint="what it said is above")
        return done.stdout

    def pipe(self, command: tuple[str, ...], program: str) -> None:
        """Show and run a command whose stdout goes into a Python one-liner."""
        self.show(command, f" | python -c {shlex.quote(program)}")
        environ = self.environment()
        with subprocess.Popen([*CRMCTL, *command], cwd=self.folder, env=environ, stdout=subprocess.PIPE) as source:  # noqa: S603
            reader = [sys.executable, "-c", program]
            counted = subprocess.run(reader, stdin=source.stdout, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
        self.say(counted.stdout)
        if source.returncode or counted.returncode:
            raise CrmctlError("the pipe failed", hint=counted.stderr.strip().splitlines()[-1] if counted.stderr.strip() else None)
