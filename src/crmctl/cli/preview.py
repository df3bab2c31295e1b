"""`--dry-run`: a session that lets reads through and shows a write instead of sending it. Every write command gets it for free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crmctl.cli.runtime import Runtime
    from crmctl.client.answers import Answer
    from crmctl.client.session import Session
    from crmctl.models.jsontext import Json

API = "/api/v1"


class WouldSend(Exception):
    """Not an error: the write that a dry run has arrived at, which ends the run."""

    def __init__(self, method: str, path: str, body: Any) -> None:
        super().__init__(f"{method} {path}")
        self.method = method
        self.path = path
        self.body = body

    def show(self, runtime: Runtime) -> None:
        """Print method, path and body: for a person as they would be on the wire, else as `{"dryRun", "method", "path", "body"}`."""
        request = {"method": self.method, "path": self.path, "body": self.body}
        show_requests(runtime, [request], {"dryRun": True, **request})


def show_requests(runtime: Runtime, requests: Sequence[Json], document: Json) -> None:
    """Print the requests of a dry run for a person, the document for a program. --fields names parts of the result, not of a request."""
    from crmctl.models import jsontext

    runtime.take_fields()
    if runtime.output_format == "table":
        for request in requests:
            body = "" if request["body"] is None else jsontext.dumps(request["body"], indent=2) + "\n"
            runtime.streams.write_out(f"{request['method']} {request['path']}\n{body}")
    else:
        runtime.emitter.emit_result(document)
    runtime.messages.note("dry run: nothing was sent")


class PreviewSession:
    """Stands in for a Session. Requests that only read are sent; the first that would write raises WouldSend."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def request(self, method: str, path: str, *, body: Any = None, reads: bool | None = None, **options: Any) -> Answer:
        if reads or method in ("GET", "HEAD"):
            return self._session.request(method, path, body=body, reads=True, **options)
        from urllib.parse import urlencode

        from crmctl.models import jsontext

        path, query = "/" + path.lstrip("/"), list(options.get("query", ()))
        full = path if path == API or path.startswith(f"{API}/") else API + path
        content = jsontext.loads(body) if isinstance(body, bytes) else body
        raise WouldSend(method, f"{full}?{urlencode(query)}" if query else full, content)
