"""Where configuration and caches lie."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path
from typing import Never

import pytest

from gpuops.config.user_paths import cache_dir, config_file, home_dir, name_missing_user
from gpuops.execute.state.state_dir import default_state_dir


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


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a number alone, and no $HOME, as in OpenShift."""

    def unknown(uid: int) -> Never:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nameless")
def test_a_user_without_a_home_directory() -> None:
    assert home_dir({}) == Path("/")
    assert config_file({}) == Path("/.config/gpuops/config.toml")
    assert cache_dir({}) == Path("/.cache/gpuops")
    assert default_state_dir({}) == Path("/.local/state/gpuops")
    assert config_file({"HOME": "/me"}) == Path("/me/.config/gpuops/config.toml")


@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize("home", [None, ""])
def test_such_a_process_names_both_for_its_libraries(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("LOGNAME", "")  # so that it is restored
    monkeypatch.delenv("LOGNAME")
    name_missing_user()
    assert Path("~/x").expanduser() == Path("/x")
    assert getpass.getuser() == str(os.geteuid())
