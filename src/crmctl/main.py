"""The process edge: answers `--version` and completion scripts before the command line is imported, else runs it and exits."""

import os
import sys

LOADED = 80_000
"""Imports alone make so many objects that Python looks for garbage hundreds of times, in vain: a tenth of the time a short command takes.
With more than this the program is loaded, or all but loaded."""
COLLECT_AFTER = 10_000
"""Not more than this from then on: requests leave cycles behind that hold their bodies, and memory is to stay flat however long an import
runs."""


def main() -> None:
    """Entry point of the `crmctl` script; never returns."""
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):
        from crmctl.version import __version__

        sys.exit(_say(f"crmctl {__version__}\n"))
    if sys.argv[1:3] == ["completion", "values"]:
        from crmctl.cli.completions.values import print_values

        print_values(sys.argv[3:], os.environ)
        sys.exit(0)
    import gc

    gc.set_threshold(LOADED)
    gc.callbacks.append(_keep_what_is_loaded)
    # Read when the first model is built: crmctl has no plug-ins for pydantic, and looking for some in every installed package takes 10 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from crmctl.cli.app import run_process

    code = run_process(sys.argv[1:])
    gc.freeze()  # what is left goes with the process: not worth a last search
    sys.exit(code)


def _keep_what_is_loaded(_phase: str, _: dict[str, int]) -> None:
    """Before the first search for garbage: what is loaded stays, so that neither this search nor a later one goes through it."""
    import gc

    gc.callbacks.remove(_keep_what_is_loaded)
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _say(text: str) -> int:
    """Write past Python's buffers, so that a reader that has gone (0) or a full disk (2) shows here and not at the interpreter's exit."""
    try:
        os.write(1, text.encode())
    except BrokenPipeError:
        return 0
    except OSError as error:
        from crmctl.errors import reason

        os.write(2, f"error: cannot write the output: {reason(error)}\n".encode())
        return 2
    return 0
