"""`crmctl webhooks listen` as a process, deliveries to it, and threads that send them."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import threading
import time
from typing import Any, Self
from urllib.parse import urlsplit

from crmctl.models.signatures import new_secret, sign
from tests.support.cli import start_crmctl
from tests.support.patience import PATIENCE

SECRET = new_secret()
PAYLOAD = {"organizationId": "o1", "recordId": "r1", "objectId": "b1", "data": {"amount": 12.5, "name": "Ada"}}


class Listener:
    """`crmctl webhooks listen` as a process on a free port."""

    def __init__(self, *options: str, secret: str = SECRET) -> None:
        self.process = start_crmctl("webhooks", "listen", "--port", "0", *options, env={"CRMCTL_WEBHOOK_SECRET": secret})
        assert self.process.stderr is not None
        self.ready = self.process.stderr.readline()
        assert "listening on http://" in self.ready, self.ready
        self.url = self.ready.split()[2].rstrip(",;")
        parts = urlsplit(self.url)
        self.address = (str(parts.hostname), int(parts.port or 0))
        self.out = self.err = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def post(self, body: bytes, headers: dict[str, str], **options: Any) -> int:
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        try:
            connection.request("POST", "/hooks", body, headers, **options)
            return connection.getresponse().status
        finally:
            connection.close()

    def send(self, identity: str, body: bytes | None = None, kind: str | None = "record.created", **headers: str) -> int:
        content = json.dumps(PAYLOAD).encode() if body is None else body
        return self.post(content, signed(identity, content, kind) | headers)

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end_without_reader(self) -> str:
        """Wait for the successful end of the process. Return its messages."""
        assert self.process.stderr is not None
        messages = self.process.stderr.read()
        assert self.process.wait(PATIENCE) == 0, messages
        for stream in (self.process.stderr, self.process.stdin):
            if stream is not None:
                stream.close()
        return messages

    def stop(self, number: int = signal.SIGINT) -> list[dict[str, Any]]:
        """End the process. Return the printed events that were not read yet."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.out = self.process.stdout.read()  # `communicate` would skip what `line` has read ahead
        self.process.stdout.close()
        self.err = self.end_without_reader()
        return [json.loads(line) for line in self.out.splitlines()]


def signed(
    identity: str, body: bytes, kind: str | None = "record.created", at: float | None = None, secret: str = SECRET
) -> dict[str, str]:
    headers = sign([secret], identity, int(time.time() if at is None else at), body).as_headers()
    return headers | ({"webhook-event-type": kind} if kind else {})


class Senders:
    """Threads that deliver events until nothing listens any more; `taken` lists the ids answered with 204."""

    def __init__(self, listener: Listener, count: int, body: bytes) -> None:
        self.taken: list[str] = []
        self.statuses: set[int] = set()
        self._listener, self._body = listener, body
        self._threads = [threading.Thread(target=self._send, args=[f"{name}"]) for name in range(count)]
        for thread in self._threads:
            thread.start()

    def _send(self, name: str) -> None:
        for number in itertools.count():
            identity = f"evt_{name}_{number}"
            try:
                status = self._listener.send(identity, self._body)
            except (OSError, http.client.HTTPException):
                return
            self.statuses.add(status)
            if status == 204:
                self.taken.append(identity)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
