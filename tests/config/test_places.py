"""Where configuration and caches lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.file import cache_dir, config_file


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GPUOPS_CONFIG": "here.toml", "XDG_CONFIG_HOME": "/x", "HOME": "/home/me"}, "here.toml"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/home/me"}, "/x/gpuops/config.toml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/home/me"}, "/home/me/.config/gpuops/config.toml"),
        ({"HOME": "/home/me"}, "/home/me/.config/gpuops/config.toml"),
    ],
)
def test_configuration_file(environ: dict[str, str], expected: str) -> None:
    assert config_file(environ) == Path(expected)


def test_cache() -> None:
    assert cache_dir({"HOME": "/home/me"}) == Path("/home/me/.cache/gpuops")
    assert cache_dir({"XDG_CACHE_HOME": "/c", "HOME": "/home/me"}) == Path("/c/gpuops")
