"""Raw connections to a service, for misbehaving clients.

with Wire(service.base_url, service.key) as wire:
    wire.send(f"GET /healthz HTTP/1.1\\r\\n{wire.headers}\\r\\n")
    status, headers, body = wire.answer()
"""

from __future__ import annotations

import socket


class Wire:
    """One connection. `headers` are the lines that every request needs."""

    def __init__(self, base_url: str, key: str = "", *, timeout: float = 30) -> None:
        host, _, port = base_url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.headers = "Host: x\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self.file = self.socket.makefile("rb")

    def send(self, text: str | bytes) -> None:
        self.socket.sendall(text if isinstance(text, bytes) else text.encode())

    def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body."""
        status = int(self.file.readline().split()[1])
        headers = {}
        while (line := self.file.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self.file.read(int(headers.get("content-length", 0))) if has_body else b""

    def is_ended(self) -> bool:
        """Wait until the service closes the connection. Return whether it did so without further bytes."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()
