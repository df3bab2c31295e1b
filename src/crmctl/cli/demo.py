"""The demonstration: what is played on the stage, in order."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from crmctl.cli.demo_comparison import compare
from crmctl.cli.demo_stage import Stage
from crmctl.clock import Clock
from crmctl.errors import ServiceError
from crmctl.models import jsontext

COUNT = "import collections, json, sys; print(*collections.Counter(json.load(sys.stdin)).most_common(5))"
EVENTS = {"activity.created": 2, "workflow.completed": 1}
"""What the webhook hears, and how often: the activity that is logged, the one that the workflow makes, the workflow's end."""


@dataclass
class Demo:
    """One run on a stage; `clock` stamps what is not done by a command."""

    stage: Stage
    clock: Clock

    def play(self) -> dict[str, Any]:
        """All of it; returns `{"imported", "exported", "cells", "differences", "events"}`. Raises the first error of a command."""
        with ExitStack() as running:
            self.start_service(running)
            company = self.prepare()
            result = self.bulk(company)
            listener = self.start_listening(running)
            self.work(company)
            return result | {"events": self.hear(listener)}

    def start_service(self, running: ExitStack) -> None:
        stage = self.stage
        stage.title("Start a Customer Records Service on a free port, with its data in a temporary folder.")
        ready = jsontext.loads(_next_line(running.enter_context(stage.background("serve", "--data", "service", "--port", "0", "--dev"))))
        stage.say(f"listening on {ready['baseUrl']}\n")
        stage.title("Sign in. The key comes from stdin, never from the command line.")
        stage.run("auth", "login", "--base-url", ready["baseUrl"], "--with-key", "--insecure-storage", given=ready["apiKey"])

    def prepare(self) -> str:
        """The id of the company that everybody works for."""
        stage = self.stage
        for name in ("people.csv", "crm.yaml"):
            (stage.folder / name).write_bytes(files("crmctl.cli").joinpath("demo_data", name).read_bytes())
        stage.title("Prepare: one more attribute, a report and a workflow from a file; and a company that everybody works for.")
        stage.run("service", "load", "crm.yaml", "--data", "service")
        return str(stage.ask("records", "create", "companies", "--set", "name=Acme")["id"])

    def bulk(self, company: str) -> dict[str, Any]:
        stage = self.stage
        stage.title("Import 300 people from a CSV: first a look, then for real.")
        stage.run("bulk", "import", "people", "people.csv", "--set", f"company={company}", "--dry-run")
        stage.run("bulk", "import", "people", "people.csv", "--set", f"company={company}")
        stage.title("List them, filtered, as a table.")
        shown = ("--fields", "name,email,score,annual_spend,birthday")
        stage.run("records", "list", "people", "--filter", "email endsWith @acme.com", "--filter", "score>=60", "--limit", "6", *shown)
        stage.title("Pipe JSON into another program.")
        stage.pipe(("records", "list", "people", "--all", "-o", "json", "-q", "[].data.address.country"), COUNT)
        stage.title("Export everything, and compare it with the file that was imported.")
        stage.run("bulk", "export", "people", "-O", "export.csv")
        result = compare(stage.folder / "people.csv", stage.folder / "export.csv", company)
        stage.say(f"{result['cells']:,} cells compared, {result['differences']:,} differences\n")
        stage.title("Keep a copy of the data in one file, proven to be complete, and ask it in SQL.")
        stage.run("mirror", "sync", "people")
        stage.run(
            "mirror", "sql", "SELECT status, count(*) AS people, round(avg(score), 1) AS score FROM people GROUP BY status ORDER BY 2 DESC"
        )
        stage.title("Find people who are there twice, however they are spelled; merging them is a plan away, and can be undone.")
        stage.run("bulk", "dedupe", "people", "--match", "name,phone", "--keep", "most-complete", "--review")
        stage.title("Run a report, and draw it.")
        stage.run("reports", "run", "People by status", "--fields", "status,resultCount")
        stage.run("reports", "results", "People by status", "--chart")
        return result

    def start_listening(self, running: ExitStack) -> subprocess.Popen[str]:
        """A receiver, and an endpoint with its address; the console's pages do the same with a form."""
        stage = self.stage
        stage.title("Receive webhooks: only what is signed with the endpoint's secret is taken.")
        endpoint, secret = self._add_endpoint()
        command = ("webhooks", "listen", "--port", "0")
        listener = running.enter_context(stage.background(*command, then=" > events.jsonl", CRMCTL_WEBHOOK_SECRET=secret))
        said = listener.stderr.readline() if listener.stderr else ""
        address = next((word.strip(";,") for word in said.split() if word.startswith("http://")), None)
        if address is None:
            raise ServiceError(f"the receiver did not start: {said.strip() or 'it said nothing'}")
        stage.say(said)
        self._write(lambda webhooks, tx: webhooks.update_endpoint(tx, endpoint, {"url": address}, now=self.clock.now()))
        return listener

    def work(self, company: str) -> None:
        stage = self.stage
        stage.title("Log a call, let a workflow plan the next one, upload a file.")
        about = ("--title", "First call", "--date", "yesterday 15:30", "--link", f"companies:{company}")
        stage.run("activities", "create", *about, "--fields", "title,activityDate")
        stage.run("workflows", "run", "Call again", "--wait", "--fields", "title,status,completedAt")
        stage.run("files", "upload", "people.csv", "--bucket", "demo", "--fields", "path,bytes,contentType")

    def hear(self, listener: subprocess.Popen[str]) -> int:
        """How many events came, once all of them have."""
        stage = self.stage
        stage.title("What the receiver heard meanwhile, each delivery's signature verified.")
        missing = Counter(EVENTS)
        while missing.total():
            event = jsontext.loads(_next_line(listener))
            missing -= Counter([event["type"]])
            about = event["data"].get("title") or event["data"].get("workflowName") or ""
            stage.say(f"{event['timestamp']}  {event['type']:<18}  {about}\n")
        return sum(EVENTS.values())

    def _add_endpoint(self) -> tuple[str, str]:
        """Id and signing secret of a new endpoint, still without a receiver."""
        from uuid import uuid4

        made = self._write(
            lambda webhooks, tx: webhooks.create_endpoint(
                tx, url="http://127.0.0.1/", event_types=list(EVENTS), ids=lambda: str(uuid4()), now=self.clock.now()
            )
        )
        return made["id"], self._write(lambda webhooks, tx: webhooks.reveal_secret(tx, made["id"]))

    def _write(self, work: Callable[[Any, Any], Any]) -> Any:
        """In the service's own data, beside the service: `work(webhooks, transaction)`."""
        from crmctl.service.settings import ServiceSettings
        from crmctl.service.store import webhooks
        from crmctl.service.store.engine import open_engine

        with closing(open_engine(ServiceSettings(data_dir=self.stage.folder / "service").engine_url)) as engine:
            return engine.write(lambda tx: work(webhooks, tx))


def _next_line(process: subprocess.Popen[str]) -> str:
    """The next line on a process's stdout. Raises ServiceError with what it complains about when there is none."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        complaint = process.stderr.read().strip() if process.stderr else ""
        raise ServiceError(f"it ended too early: {complaint.splitlines()[0] if complaint else 'it said nothing'}")
    return line
