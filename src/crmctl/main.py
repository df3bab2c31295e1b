"""The process edge: answer `--version` and completion before importing the command line, else run it and exit."""

import os
import sys

LOADED = 80_000
"""Objects before the first garbage collection. Imports alone would trigger hundreds of useless ones: a tenth of a short command's time."""
COLLECT_AFTER = 10_000
"""Objects between later collections. Requests leave cycles that hold their bodies; memory must stay flat during a long import."""


def main() -> None:
    """Entry point of the `crmctl` script; never returns."""
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):
        from crmctl.version import __version__

        sys.exit(_say(f"crmctl {__version__}\n"))
    if sys.argv[1:2] == ["__complete"]:
        from crmctl.cli.complete import answer

        sys.exit(_say(answer(sys.argv[2:], os.environ)))
    import gc

    gc.set_threshold(LOADED)
    gc.callbacks.append(_keep_what_is_loaded)
    # crmctl has no pydantic plug-ins; searching every installed package for some takes 10 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from crmctl.cli.app import run_process

        code = run_process(sys.argv[1:])
    except KeyboardInterrupt:  # while the program is loaded
        code = 130
    gc.freeze()  # skip the last collection: the process ends
    sys.exit(code)


def _keep_what_is_loaded(_phase: str, _: dict[str, int]) -> None:
    """Exclude the loaded program from this and every later collection."""
    import gc

    gc.callbacks.remove(_keep_what_is_loaded)
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _say(text: str) -> int:
    """Write unbuffered, so that a closed pipe or stdout (0) or a full disk (2) shows here and not at the interpreter's exit."""
    try:
        os.write(1, text.encode())
    except OSError as error:
        import errno

        from crmctl.errors import reason

        if error.errno in (errno.EPIPE, errno.EBADF):
            return 0
        if sys.stderr is not None:
            os.write(2, f"error: cannot write the output: {reason(error)}\n".encode())
        return 2
    return 0
