"""Returns the paths of the configuration file and the cache of the user who runs gpuops, even one without a home."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path


def config_file(environ: Mapping[str, str]) -> Path:
    """Return $GPUOPS_CONFIG, else $XDG_CONFIG_HOME/gpuops/config.toml, else ~/.config/gpuops/config.toml."""
    if path_text := environ.get("GPUOPS_CONFIG"):
        return Path(path_text)
    return _xdg_dir(environ, "XDG_CONFIG_HOME", ".config") / "gpuops" / "config.toml"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return $XDG_CACHE_HOME/gpuops, else ~/.cache/gpuops."""
    return _xdg_dir(environ, "XDG_CACHE_HOME", ".cache") / "gpuops"


def _xdg_dir(environ: Mapping[str, str], variable: str, default: str) -> Path:
    # XDG Base Directory Specification: a relative path in these variables is invalid and must be ignored
    directory = Path(environ.get(variable, ""))
    return directory if directory.is_absolute() else home_dir(environ) / default


def home_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return $HOME, else the home directory in the user database, else `/`, as container engines set it.

    In a container the user may have only a number: no name, no home directory and no $HOME.
    """
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def name_missing_user() -> None:
    """Set $HOME where it is missing, and $LOGNAME for a user without a name: libraries and `~` need them."""
    os.environ["HOME"] = str(home_dir())
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        os.environ.setdefault("LOGNAME", str(os.geteuid()))
