"""`crmctl config`: settings and profiles in config.toml. Keys are not settings: see `auth`."""

from __future__ import annotations

from typing import Annotated, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag
from crmctl.cli.runtime import Runtime
from crmctl.errors import ConfigError

app = CommandApp("Read and change settings and profiles.")

KeyArgument = Annotated[str, argument("KEY", "Name of the setting, such as base_url or output.")]
GlobalOption = Annotated[bool, flag("--global", "For all profiles, instead of the current one.")]


@app.command("list", examples=["crmctl config list", "crmctl config list --profile work -o json"])
def list_settings(runtime: Runtime) -> None:
    """Show every setting, its value and its source."""
    rows = [{"key": name, "value": setting.value, "source": setting.source} for name, setting in runtime.settings.items()]
    runtime.emitter.emit_rows(rows, "settings")


@app.command("get", examples=["crmctl config get base_url", "crmctl config get output -o json"])
def get_setting(runtime: Runtime, key: KeyArgument) -> None:
    """Show one setting."""
    from crmctl.config.settings import find_key

    folded = key.replace("-", "_")
    if folded == "default_profile":
        value: Any = runtime.settings.file.default_profile
        document = {"key": folded, "value": value, "source": "config.toml" if value else "default"}
    else:
        name = folded if folded == "profile" else find_key(folded).name
        setting = getattr(runtime.settings, name)
        document = {"key": name, "value": setting.value, "source": setting.source}
    runtime.emitter.emit_result(document, text=_shown(document["value"]))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@app.command(
    "set",
    local=True,
    examples=["crmctl config set output table", "crmctl config set timeout 60 --global", "crmctl config set protected false"],
)
def set_setting(
    runtime: Runtime,
    key: KeyArgument,
    value: Annotated[str, argument("VALUE", "The new value.")],
    everywhere: GlobalOption = False,
) -> None:
    """Change a setting of the current profile, or of all with --global.

    Setting base_url creates a profile that does not exist; other settings need an existing one.
    """
    from crmctl.config.settings import TOP_LEVEL_ONLY

    folded = key.replace("-", "_")
    profile = None if everywhere or folded in TOP_LEVEL_ONLY else _profile_of(runtime, may_be_new=folded == "base_url")
    if folded == "default_profile":
        _check_profile(runtime, value, "default_profile")
    file = runtime.settings.file.set_value(folded, value, profile)
    stored = (file.profiles[profile] if profile else file.top)[folded]
    runtime.done({"key": folded, "value": stored, "profile": profile}, f"{folded} is now {_shown(stored)} {_place(profile)}")


@app.command("unset", local=True, examples=["crmctl config unset timeout", "crmctl config unset output --global"])
def unset_setting(runtime: Runtime, key: KeyArgument, everywhere: GlobalOption = False) -> None:
    """Remove a setting of the current profile, or the one for all with --global."""
    from crmctl.config.settings import TOP_LEVEL_ONLY

    folded = key.replace("-", "_")
    profile = None if everywhere or folded in TOP_LEVEL_ONLY else _profile_of(runtime)
    runtime.settings.file.unset_value(folded, profile)
    runtime.done({"key": folded, "value": None, "profile": profile}, f"{folded} is not set {_place(profile)} any more")


def _profile_of(runtime: Runtime, *, may_be_new: bool = False) -> str:
    """Return the current profile. Raises ConfigError for an unknown one, which may be misspelt."""
    profile = runtime.settings.profile
    if not may_be_new:
        _check_profile(runtime, profile.value, profile.source)
    return profile.value


def _check_profile(runtime: Runtime, name: str, source: str) -> None:
    from crmctl.config.settings import DEFAULT_PROFILE

    profiles = sorted(runtime.settings.file.profiles)
    if profiles and name not in (*profiles, DEFAULT_PROFILE):
        raise ConfigError(
            f"there is no profile {name!r} ({source})",
            hint=f"known profiles: {', '.join(profiles)}; crmctl config set base_url URL --profile {name} makes it",
            code="unknown_profile",
        )


def _place(profile: str | None) -> str:
    return f"in profile {profile}" if profile else "for all profiles"


@app.command("path", local=True, examples=["crmctl config path"])
def show_paths(runtime: Runtime) -> None:
    """Show where settings, state and caches are kept."""
    paths = runtime.paths
    document = {"config": str(paths.config_file), "state": str(paths.state), "cache": str(paths.cache)}
    if runtime.message_format in ("table", "ids"):
        runtime.streams.write_out(f"{paths.config_file}\n")
    else:
        runtime.emitter.emit_result(document)
