"""One run of the command line: builds the runtime, runs the command, reports the one error there may be."""

from __future__ import annotations

import os
from collections.abc import Sequence

from crmctl.cli.framework import run_command
from crmctl.cli.preview import WouldSend
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, ExitCode, InterruptedByUser, storage_error
from crmctl.output.streams import Streams


def run_process(arguments: Sequence[str]) -> int:
    """Run with this process's own streams and environment."""
    return run(arguments, Runtime(Streams.of_process(), dict(os.environ), list(arguments)))


def run(arguments: Sequence[str], runtime: Runtime) -> int:
    """Run one command line; returns the exit code and has printed everything there is to say."""
    try:
        code = run_command(arguments, runtime)
        runtime.close()
        return code
    except WouldSend as preview:
        preview.show(runtime)
        runtime.close()
        return ExitCode.OK
    except KeyboardInterrupt:
        return _report(runtime, InterruptedByUser("interrupted"))
    except CrmctlError as error:
        return _report(runtime, error)
    except Exception as error:
        return _report(runtime, storage_error(error) or _unexpected(error, runtime))
    finally:
        runtime.end()


def _unexpected(error: Exception, runtime: Runtime) -> CrmctlError:
    if runtime.flags.get("debug"):
        import traceback

        runtime.messages.debug(traceback.format_exc())
    summary = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return CrmctlError(f"unexpected error: {summary}", hint="this is a bug in crmctl; run again with --debug and report what it prints")


def _report(runtime: Runtime, error: CrmctlError) -> int:
    runtime.messages.report_error(error)
    return error.exit_code
