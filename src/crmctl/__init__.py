"""crmctl: the command line and the Python API of the Customer Records Service. The API is imported when it is used."""

from crmctl.version import __version__

__all__ = ["Client", "__version__"]

TYPE_CHECKING = False  # importing it from typing would take longer than all of this
if TYPE_CHECKING:
    from crmctl.api import Client


def __getattr__(name: str) -> object:
    if name == "Client":
        from crmctl.api import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
