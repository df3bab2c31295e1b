"""The process edge: answers `--version` and completion scripts before the command line is imported, else runs it and exits with its code."""

import sys


def main() -> None:
    """Entry point of the `crmctl` script; never returns."""
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):
        from crmctl import __version__

        sys.stdout.write(f"crmctl {__version__}\n")
        sys.exit(0)
    if sys.argv[1:3] == ["completion", "values"]:
        import os

        from crmctl.cli.completions.values import print_values

        print_values(sys.argv[3:], os.environ)
        sys.exit(0)
    from crmctl.cli.app import run_process

    sys.exit(run_process(sys.argv[1:]))
