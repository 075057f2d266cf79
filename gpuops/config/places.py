"""Where this user's configuration and caches lie: the XDG base directories, or what GPUOPS_* says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def config_file(environ: Mapping[str, str]) -> Path:
    """$GPUOPS_CONFIG, else $XDG_CONFIG_HOME/gpuops/config.toml, else ~/.config/gpuops/config.toml."""
    if own := environ.get("GPUOPS_CONFIG"):
        return Path(own)
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "gpuops" / "config.toml"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/gpuops, else ~/.cache/gpuops."""
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "gpuops"


def _base(environ: Mapping[str, str], variable: str, default: str) -> Path:
    # The specification: a relative path in these variables is invalid and must be ignored.
    named = Path(environ.get(variable, ""))
    return named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / default
