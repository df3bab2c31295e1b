"""Extensions of the interface: crmctl's own service has them, others may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from crmctl.errors import CrmctlError, RejectedError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

T = TypeVar("T")


def open_record(runtime: Runtime, object_name: str, record_name: str) -> None:
    """Print the address of a record's page in the console, and open it. Raises RejectedError if the service has no console."""
    from crmctl.cli.targets import read_record

    record = read_record(runtime, object_name, record_name)
    offered = runtime.crm.extensions()
    if offered is None or not offered.console_url:
        raise _lacks("the extension GET /extensions, which gives the address of its console")
    slug = runtime.directory.object(runtime.shown_ids.whole(object_name)).slug
    url = f"{offered.console_url}/records/{slug}/{record.id}"
    runtime.emitter.emit_result({"url": url}, text=url)
    runtime.browse(url)


def on_extension(runtime: Runtime, name: str, call: Callable[[], T]) -> T:
    """Return `call()`, which uses the endpoint `name` (`GET /files`). Raises RejectedError if the service does not offer it."""
    from crmctl.client.crm import NOT_OFFERED

    try:
        return call()
    except CrmctlError as error:
        if error.status not in NOT_OFFERED:
            raise
        offered = runtime.crm.extensions()
        if offered is not None and name in offered.extensions:
            raise
    raise _lacks(f"the extension {name}")


def _lacks(what: str) -> RejectedError:
    return RejectedError(f"this service does not offer {what}", hint="crmctl's own service does: crmctl serve", code="not_supported")
