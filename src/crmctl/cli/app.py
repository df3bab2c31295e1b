"""The Typer application. Only this module uses Typer's inner API."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from typer import _click as click
from typer._click.parser import _OptionParser as OptionParser
from typer._coercion import RuntimeParam
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import _get_params_name_from_function as read_parameters
from typer.main import _normalize_collection_value as read_collection

from crmctl.cli.options import ADVANCED, WIDEST, common_options, shared_option
from crmctl.cli.registry import BY_NAME, COMMANDS, extra_hint, option_hint, way_out
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, ExitCode, InterruptedByUser, UsageError, storage_error
from crmctl.output.streams import Streams

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json

Parameter = TyperArgument | TyperOption
HELP_ALL = "--help-all"
CONTEXT = {"help_option_names": ["-h", "--help", HELP_ALL], "max_content_width": WIDEST}


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value == "":
        _refuse_empty(param)
    if value is not None and param.name:
        if param.name in ctx.obj.flags and _takes_one_value(param):
            _refuse_repeated(param)
        ctx.obj.flags[param.name] = value
    return value


def _takes_one_value(param: Any) -> bool:
    return isinstance(param, TyperOption) and not (param.is_flag or param.count or param.multiple)


def _refuse_repeated(param: Any) -> NoReturn:
    name = max(param.opts, key=len)
    raise UsageError(f"{name} takes one value and was given more than once", hint=f"leave one {name} out")


def _refuse_empty(param: Any) -> NoReturn:
    name = max(param.opts, key=len) if isinstance(param, TyperOption) else param.metavar.partition("|")[0]
    raise UsageError(f"{name} is empty", hint="is a variable of the shell not set?")


class _Parser(OptionParser):
    """Refuses to take an option twice that takes one value, instead of dropping the first value."""

    def parse_args(self, args: list[str]) -> tuple[Json, list[str], list[Any]]:
        values, rest, order = super().parse_args(args)
        for position, param in enumerate(order):
            if _takes_one_value(param) and param in order[:position]:
                _refuse_repeated(param)
        return values, rest, order


class _StrictOptions:
    """Commands and groups whose options are parsed by `_Parser`."""

    def make_parser(self: Any, ctx: click.Context) -> OptionParser:
        parser = _Parser(ctx)
        for param in self.get_params(ctx):
            param.add_to_parser(parser, ctx)
        return parser

    def get_help_option(self: Any, ctx: click.Context) -> TyperOption | None:
        option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            _with_reader(option).callback = _show_help
        return option


@cache
def _common_parameters() -> Sequence[Any]:
    """Return the common options, whose values land in the runtime's `flags`. They hold no state, so all commands share them."""
    parameters = _read_parameters(inspect.signature(common_options, eval_str=True).parameters.values())
    for parameter in parameters:
        parameter.expose_value = False
        parameter.callback = _remember
    return parameters


def _with_common(own: Sequence[Any]) -> list[Any]:
    taken = {name for parameter in own for name in parameter.opts}
    return [*own, *(parameter for parameter in _common_parameters() if not taken & set(parameter.opts))]


def _read_parameters(parameters: Iterable[inspect.Parameter]) -> list[Any]:
    """Return the options and arguments that the parameters of a function declare."""

    def declared() -> None: ...

    declared.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    return [_with_reader(parameter) for parameter in read_parameters(declared)[0]]


def _with_reader(parameter: Any) -> Any:
    descriptor = parameter.type_descriptor
    parameter._runtime_param = _Reader(descriptor.parameter_info, descriptor.annotation)
    return parameter


def _read_bool(text: str) -> bool:
    from crmctl.config.settings import parse_bool

    return parse_bool(text)


_KINDS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (_read_bool, "true or false"),
    Path: (Path, "a path"),
}


@dataclass(frozen=True)
class _Reader(RuntimeParam):
    """Reads the values of a parameter. Typer would build a pydantic adapter for each, after importing pydantic in 65 ms."""

    def _coerce_value(self, value: Any, param: Any, ctx: click.Context) -> Any:
        if value is param.default:
            return value
        texts = list(value) if isinstance(value, list | tuple) else [value]
        for text in texts:
            may_be_file = _names_file(text, param.metavar or "")
            if not text and may_be_file:
                _refuse_empty(param)
            problem = "" if _is_text(text) or may_be_file else "text in UTF-8"
            if self.annotation in _KINDS:
                value, problem = self._read(text)
            if problem:
                raise click.exceptions.BadParameter(f"{problem} is expected, not {text!r}", ctx=ctx, param=param)
        return value if self.annotation in (str, *_KINDS) else texts

    def _read(self, text: str) -> tuple[Any, str]:
        """Return the value of a text, and what is expected instead if it is none."""
        parse, expected = _KINDS[self.annotation]
        low, high = self.parameter_info.min, self.parameter_info.max
        if parse in (int, float) and "_" in text:  # Python's grouping of digits
            return None, "a number of digits"
        try:
            value = parse(text)
        except ValueError:
            return None, expected
        if low is not None and not low <= value:
            return value, f"at least {low}"
        return value, f"at most {high}" if high is not None and value > high else ""


def _is_text(value: Any) -> bool:
    """Whether a value is text; arguments that are not UTF-8 arrive with lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names_file(text: str, metavar: str) -> bool:
    """Whether a value may be the name of a file, which can hold any bytes."""
    return text.startswith("@") if "@FILE" in metavar else any(word in metavar for word in ("FILE", "DIR", "PATH"))


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print help through the runtime's streams: Typer would end with 1 if the reader has gone."""
    if value and not ctx.resilient_parsing:
        ctx.obj.streams.write_out(f"{ctx.get_help()}\n")
        ctx.exit()


class Command(_StrictOptions, TyperCommand):
    """A function as a command that takes the common options. Help shows the `examples`, whole command lines, and a test runs them.

    `writes`: whether it changes data of the service, which guards read-only and protected profiles and allows --dry-run; None if the
    function guards its writes itself. `local` ones work with broken settings. Variables that begin with `prefix` set options, too.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        examples: Sequence[str] = (),
        writes: bool | None = False,
        local: bool = False,
        help: str | None = None,
        prefix: str | None = None,
    ) -> None:
        self.function, self.examples, self.writes, self.local = function, examples, writes, local
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        first, *own = (parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
        self._takes_context = first.name == "ctx"
        self.own_params = _read_parameters([*own, *map(shared_option, getattr(function, "shared", ()))])
        settings = CONTEXT | {"auto_envvar_prefix": prefix}
        text = help or inspect.getdoc(function)
        super().__init__(name, params=_with_common(self.own_params), help=text, context_settings=settings, rich_markup_mode=None)

    def invoke(self, ctx: click.Context) -> Any:
        runtime = ctx.obj
        if runtime.dry_run and self.writes is False:
            raise UsageError(f"{ctx.command_path} writes nothing to the service: --dry-run has nothing to show", hint="leave --dry-run out")
        if not self.local:
            runtime.check_options()
        if self.writes:
            runtime.guard_write()
        # An option that repeats gives a list, and None without a value, as its function declares.
        values = {parameter.name: read_collection(parameter, ctx.params[parameter.name]) for parameter in self.own_params}
        return self.function(ctx if self._takes_context else runtime, **values)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from crmctl.cli.help_text import command_page, render

        common = [_describe_option(option) for option in self.params if option not in self.own_params]
        page = command_page(_describe(self, ctx.command_path), common, is_whole=_shows_all(ctx))
        formatter.write(render(page, formatter.width))


class CommandGroup(_StrictOptions, TyperGroup):
    """A group that takes the common options and shows its help without a command.

    It builds a command on demand: reading the parameters of all takes longer than running one.
    """

    def __init__(self, name: str, help: str, builders: Mapping[str, Callable[[], click.Command]]) -> None:
        super().__init__(
            name=name, help=help, params=_with_common(()), no_args_is_help=True, context_settings=CONTEXT, rich_markup_mode=None
        )
        self.builders = builders

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.builders)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.builders[cmd_name]() if cmd_name in self.builders else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            full_name = f"{ctx.command_path} {args[0]}".removeprefix("crmctl ")
            raise UsageError(f"there is no command '{full_name}'", hint=way_out(ctx.obj, ctx.command_path, args, names))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from crmctl.cli.help_text import HelpPage, render

        commands = sorted((name, build()) for name, build in self.builders.items())
        page = HelpPage(usage=f"{ctx.command_path} <command> [options]", description=self.help or "")
        page.sections = {"Commands": [(name, _summary(command)) for name, command in commands]}
        page.examples = [example for _, command in commands for example in _examples(command)[:1]]
        formatter.write(render(page, formatter.width))


class RootGroup(CommandGroup):
    """The root group: it lists the registry and imports a command's module only to run it."""

    def __init__(self) -> None:
        super().__init__("crmctl", "", {name: partial(load_command, name) for name in BY_NAME})

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises InterruptedByUser for Ctrl-C: Typer would end without a word, even after a write in doubt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise InterruptedByUser("interrupted", hint=next(iter(interrupt.args), None)) from interrupt

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from crmctl.cli.help_text import render, root_page

        formatter.write(render(root_page(COMMANDS, describe_common_options(), is_whole=_shows_all(ctx)), formatter.width))


F = TypeVar("F", bound=Callable[..., Any])


class CommandApp:
    """The commands of a module: `app = CommandApp("help")`, then `@app.command("list", examples=[...])`.

    Without help it is a single command instead of a group.
    """

    def __init__(self, help: str = "") -> None:
        self._help = help
        self.builders: dict[str, Callable[[], click.Command]] = {}

    def command(self, name: str, **settings: Any) -> Callable[[F], F]:
        """Register a function, whose first parameter is the runtime, with the settings of a `Command`."""

        def register(function: F) -> F:
            self.builders[name] = partial(Command, name, function, **settings)
            return function

        return register

    def add_group(self, name: str, app: CommandApp) -> None:
        self.builders[name] = partial(app.build, name)

    def build(self, name: str) -> click.Command:
        return CommandGroup(name, self._help, self.builders) if self._help else self.builders[name]()


def load_command(name: str) -> click.Command:
    """Import and return the command or group of a registry entry."""
    command: click.Command = BY_NAME[name].load().build(name)
    return command


def run_command(arguments: Sequence[str], runtime: Any) -> int:
    """Run one command line and return the exit code. Raises CrmctlError for every failure, usage errors included."""
    try:
        code = RootGroup().main(list(arguments), prog_name="crmctl", standalone_mode=False, obj=runtime)
    except click.exceptions.NoArgsIsHelpError as shown:
        runtime.streams.write_out(shown.ctx.get_help() + "\n" if shown.ctx else "")
        return 0
    except click.exceptions.ClickException as error:
        _refuse(error)
    return int(code) if isinstance(code, int) else 0


def describe_common_options() -> list[Json]:
    return [_describe_option(option) for option in _common_parameters()]


def command_help(words: Sequence[str], width: int) -> str | None:
    """Return the help of a command (the root without words), None for an unknown one."""
    command: click.Command = RootGroup()
    ctx = click.Context(command, info_name="crmctl", terminal_width=width)
    for word in words:
        subcommand = command.get_command(ctx, word) if isinstance(command, TyperGroup) else None
        if subcommand is None:
            return None
        command, ctx = subcommand, click.Context(subcommand, info_name=word, parent=ctx, terminal_width=width)
    return command.get_help(ctx) + "\n"


def _refuse(error: click.exceptions.ClickException) -> NoReturn:
    """Raise UsageError for an error of the parser."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "crmctl"
    options = [name for parameter in ctx.command.params for name in parameter.opts if not parameter.hidden] if ctx is not None else []
    if isinstance(error, click.exceptions.NoSuchOption):
        hint = option_hint(path, error.option_name, [*options, "--help"])
        raise UsageError(f"no such option: {error.option_name}", hint=hint) from error
    if isinstance(error, click.exceptions.BadParameter) and ctx is not None and error.param is not None:
        error.param_hint = error.param_hint or environment_variable(ctx, str(error.param.name))
    message = re.sub(
        r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", r"unexpected argument: \1", error.format_message().rstrip(".")
    )
    raise UsageError(message[:1].lower() + message[1:], hint=extra_hint(path, message, options)) from error


def environment_variable(ctx: click.Context, name: str) -> str | None:
    """Return the environment variable that gave a parameter, if one did."""
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    own = next((parameter.envvar for parameter in ctx.command.params if parameter.name == name), None)
    return own if isinstance(own, str) else f"{ctx.auto_envvar_prefix}_{name.upper()}"


def _summary(command: click.Command) -> str:
    return (command.help or "").strip().split("\n", 1)[0].rstrip(".")


def _examples(command: Any) -> list[str]:
    return list(getattr(command, "examples", ()))


def _shows_all(ctx: click.Context) -> bool:
    return HELP_ALL in getattr(ctx.obj, "arguments", ())


def describe_tree() -> Json:
    """Return the whole command tree, as `crmctl commands --json` prints it; imports every command."""
    return {
        "name": "crmctl",
        "commonOptions": describe_common_options(),
        "commands": [_describe(load_command(entry.name), f"crmctl {entry.name}", entry.help) for entry in COMMANDS],
    }


def _describe(command: click.Command, path: str, summary: str = "") -> Json:
    if isinstance(command, CommandGroup):
        children = [_describe(build(), f"{path} {name}") for name, build in command.builders.items()]
        return {"command": path, "summary": summary or _summary(command), "help": command.help or "", "commands": children}
    own: Sequence[Parameter] = getattr(command, "own_params", [])
    return {
        "command": path,
        "summary": summary or _summary(command),
        "help": command.help or "",
        "arguments": [
            {"name": item.metavar, "required": item.required, "repeatable": item.nargs == -1, "help": item.help or ""}
            for item in own
            if isinstance(item, TyperArgument)
        ],
        "options": [_describe_option(item) for item in own if isinstance(item, TyperOption)],
        "examples": _examples(command),
    }


def _describe_option(option: Any) -> Json:
    default = None if option.default in (None, False, (), []) else option.default
    return {
        "names": [*option.opts, *option.secondary_opts],
        "value": None if option.is_flag else option.metavar,
        "required": option.required,
        "repeatable": option.multiple,
        "default": int(default) if isinstance(default, float) and default.is_integer() else default,
        "advanced": option.rich_help_panel == ADVANCED,
        "help": option.help or "",
    }


def walk_commands(tree: Json) -> Iterator[Json]:
    """Yield every leaf command of a described tree."""
    for child in tree["commands"]:
        if "commands" in child:
            yield from walk_commands(child)
        else:
            yield child


def run_process(arguments: Sequence[str]) -> int:
    """Run with the streams and environment of this process."""
    return run(arguments, Runtime(Streams.of_process(), dict(os.environ), list(arguments)))


def run(arguments: Sequence[str], runtime: Runtime) -> int:
    """Run one command line, print its output and errors, and return the exit code."""
    try:
        code = _run_or_preview(arguments, runtime)
        runtime.send_ping(str(int(code)))
        runtime.close()
        return code
    except KeyboardInterrupt:
        return _report(runtime, InterruptedByUser("interrupted"))
    except CrmctlError as error:
        return _report(runtime, error)
    except Exception as error:
        if runtime.flags.get("debug"):
            import traceback

            runtime.messages.debug(traceback.format_exc())
        summary = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        hint = "this is a bug in crmctl; run again with --debug and report what it prints"
        failure = storage_error(error)
        unexpected = CrmctlError(f"unexpected error: {summary}", hint=hint)
        return _report(runtime, failure if isinstance(failure, CrmctlError) else unexpected)
    finally:
        runtime.end()


def _run_or_preview(arguments: Sequence[str], runtime: Runtime) -> int:
    """Run one command line. The first write of a dry run ends it, and is shown."""
    try:
        return run_command(arguments, runtime)
    except Exception as error:
        from crmctl.cli.preview import WouldSend

        if not isinstance(error, WouldSend):
            raise
        error.show(runtime)
        return ExitCode.OK


def _report(runtime: Runtime, error: CrmctlError) -> int:
    # Before the error, which is the last line.
    runtime.send_ping(str(int(error.exit_code)))
    runtime.messages.report_error(error)
    return error.exit_code
