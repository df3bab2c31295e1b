"""The process edge: answers `--version` before anything is imported, runs the command line, turns one error into text and an exit code."""

import sys


def main() -> None:
    """Entry point of the `crmctl` script; never returns."""
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):
        from crmctl import __version__

        sys.stdout.write(f"crmctl {__version__}\n")
        sys.exit(0)
    from crmctl.cli.app import run_process

    sys.exit(run_process(sys.argv[1:]))
