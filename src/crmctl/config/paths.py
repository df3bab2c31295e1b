"""Where crmctl keeps its files. Only directories and file names: nothing here reads or writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crmctl.errors import ConfigError, reason


@dataclass(frozen=True)
class Paths:
    """The three directories of crmctl: `config` (the user's), `state` (jobs, journals), `cache` (may be deleted at any time)."""

    config: Path
    state: Path
    cache: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def credentials_file(self) -> Path:
        """Holds API keys only when somebody asked for --insecure-storage."""
        return self.config / "credentials.json"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Paths:
        """CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR and CRMCTL_CACHE_DIR, else the platform's directories. Creates nothing.

        Raises ConfigError when a directory cannot be worked out (no home directory).
        """
        return cls(**{kind: _directory(kind, environ) for kind in ("config", "state", "cache")})


def _directory(kind: str, environ: Mapping[str, str]) -> Path:
    variable = f"CRMCTL_{kind.upper()}_DIR"
    try:
        if given := environ.get(variable):
            return Path(given).expanduser().absolute()
        import platformdirs  # only when needed: the variables make it superfluous

        directories = platformdirs.PlatformDirs("crmctl", appauthor=False)
        return {"config": directories.user_config_path, "state": directories.user_state_path, "cache": directories.user_cache_path}[kind]
    except (RuntimeError, KeyError, OSError) as error:
        raise ConfigError(f"cannot work out the {kind} directory: {reason(error)}", hint=f"set {variable} to a directory") from error
