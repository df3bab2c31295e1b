"""`crmctl demo`: real commands on a temporary service."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, ServiceError, UsageError, install_command
from crmctl.models import jsontext
from crmctl.output.streams import Side, Streams

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json


app = CommandApp()

CRMCTL = (sys.executable, "-m", "crmctl")
STOP_SECONDS = 15
WIDTH = 100
"""Columns of the output when there is no terminal."""


@app.command("demo", local=True, examples=["crmctl demo", "crmctl demo -o json"])
def demonstrate(runtime: Runtime) -> None:
    """Watch crmctl work on a throw-away service.

    Starts the embedded service on a free port, signs in, imports a CSV, lists and exports it, compares every value with the file, queries
    a mirror in SQL and draws a report. The demo shows every command, does not touch your settings or data, and leaves nothing behind.
    """
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "prometheus_client")):
        raise UsageError("the demonstration needs the embedded service", hint=install_command("service"), code="service_not_installed")
    output = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else None)
    for_people = output in (None, "table")
    started = runtime.clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="crmctl-demo-") as folder:
        stage = Stage(Path(folder), runtime.streams, "stdout" if for_people else "stderr", runtime.environ)
        result = play(stage)
    seconds = runtime.clock.monotonic() - started
    if result["differences"] or result["imported"] != result["exported"]:
        raise ServiceError(f"{result['differences']} of {result['imported']} records differ from the file", details=result)
    if for_people:
        stage.say(f"\nImported {result['imported']:,} people, got all of them back unchanged, and cleaned up, in {seconds:.1f} s.\n")
    else:
        runtime.emitter.emit_result({**result, "elapsedSeconds": round(seconds, 1)})


@dataclass
class Stage:
    """A folder to run commands in, and the stream (`side`) that shows them."""

    folder: Path
    streams: Streams
    side: Side
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of crmctl for the commands."""

    def say(self, text: str) -> None:
        (self.streams.write_out if self.side == "stdout" else self.streams.write_err)(text)

    def title(self, text: str) -> None:
        self.say(f"\n{self.streams.paint(f'# {text}', 'bold', self.side)}\n")

    def show(self, command: tuple[str, ...], then: str = "") -> None:
        self.say(self.streams.paint(f"$ crmctl {shlex.join(command)}{then}", "cyan", self.side) + "\n")

    def run(self, *command: str, stdin: str = "") -> None:
        """Show and run one command and print its output. Raises CrmctlError when it fails."""
        self.show(command, " < key.txt" if stdin else "")
        done = self._finished((*command, "-o", "table"), stdin)
        self.say(done.stdout + done.stderr)

    def ask(self, *command: str, codes: Sequence[int] = (0,)) -> Any:
        """Show and run one command and return its JSON document. Raises CrmctlError when it ends with another code."""
        self.show(command)
        return jsontext.loads(self._finished((*command, "-o", "json", "--quiet"), codes=codes).stdout)

    @contextmanager
    def background(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Show a command, run it beside the others and terminate it at the end."""
        self.show(command, " &")
        with subprocess.Popen(  # noqa: S603 - this very program
            [*CRMCTL, *command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        ) as process:
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.communicate(timeout=STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _finished(self, command: tuple[str, ...], stdin: str = "", codes: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(  # noqa: S603 - this very program
            [*CRMCTL, *command],
            cwd=self.folder,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode not in codes:
            self.say(done.stdout + done.stderr)
            kind = next((kind for kind in CrmctlError.__subclasses__() if kind.exit_code == done.returncode), CrmctlError)
            raise kind(f"crmctl {command[0]} {command[1]} ended with {done.returncode}", hint="its message is above")
        return done

    def environment(self) -> dict[str, str]:
        """Return the user's environment, with the stage's settings of crmctl instead of the user's."""
        kept = {name: value for name, value in self.environ.items() if not name.startswith("CRMCTL_")}
        homes = {f"CRMCTL_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        color = {"CLICOLOR_FORCE": "1"} if self.streams.color(self.side) else {"NO_COLOR": "1"}
        network = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return kept | homes | color | network | {**self.settings, "COLUMNS": str(self.streams.width or WIDTH), "PYTHONUTF8": "1"}


def play(stage: Stage) -> Json:
    """Run the whole demo and return `{"imported", "exported", "differences"}`. Raises the first error of a command."""
    stage.title("Start a Customer Records Service on a free port, with its data in a temporary folder.")
    with stage.background("serve", "--data", "service", "--port", "0", "--dev") as service:
        line = service.stdout.readline() if service.stdout else ""
        if not line:
            complaint = service.stderr.read().strip() if service.stderr else ""
            raise ServiceError(f"the service ended too early: {complaint.splitlines()[0] if complaint else 'without a message'}")
        ready = jsontext.loads(line)
        stage.say(f"listening on {ready['baseUrl']}\n")
        stage.title("Sign in. The key comes from stdin, never from the command line.")
        stage.run("auth", "login", "--base-url", ready["baseUrl"], "--with-key", "--insecure-storage", stdin=ready["apiKey"])
        return _work(stage)


def _work(stage: Stage) -> Json:
    for name in ("people.csv", "crm.yaml"):
        (stage.folder / name).write_bytes(files("crmctl.cli").joinpath("demo_data", name).read_bytes())
    stage.title("Prepare: one more attribute and a report from a file, and a company for everyone.")
    stage.run("service", "load", "crm.yaml", "--data", "service")
    company = str(stage.ask("records", "create", "companies", "--set", "name=Acme")["id"])
    import_people = ("bulk", "import", "people", "people.csv", "--set", f"company={company}")
    stage.title("Import 300 people from a CSV: first a dry run, then for real.")
    stage.run(*import_people, "--dry-run")
    stage.run(*import_people)
    stage.title("List them, filtered, as a table.")
    shown = ("--fields", "name,email,score,annual_spend,birthday")
    stage.run("records", "list", "people", "--filter", "email endsWith @acme.com", "--filter", "score>=60", "--limit", "6", *shown)
    stage.title("Export everything, and compare the service with the file.")
    stage.run("bulk", "export", "people", "-O", "export.csv")
    preview = stage.ask(*import_people, "--key", "email", "--dry-run")
    unchanged = preview["predicted"]["unchanged"]
    stage.say(f"{unchanged:,} records hold exactly what the file says\n")
    stage.title("Keep a proven copy of the data in one file, and query it in SQL.")
    stage.run("mirror", "sync", "people")
    query = "SELECT status, count(*) AS people, round(avg(score), 1) AS score FROM people GROUP BY status ORDER BY 2 DESC"
    stage.run("mirror", "sql", query)
    stage.title("Find duplicates, however they are spelled. crmctl can merge them and undo the merge.")
    stage.run("bulk", "dedupe", "people", "--match", "name,phone", "--keep", "most-complete", "--review")
    stage.title("Run a report, and draw it.")
    stage.run("reports", "run", "People by status", "--fields", "status,resultCount")
    stage.run("reports", "results", "People by status", "--chart")
    with (stage.folder / "export.csv").open(encoding="utf-8", newline="") as file:
        exported = sum(1 for _ in csv.DictReader(file))
    return {"imported": preview["rows"], "exported": exported, "differences": preview["rows"] - unchanged}
