"""One wrong password for many vCenters: it is sent to one of them, and to no other until its file changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pytest_mock import MockerFixture
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.core.sessions import Sessions
from gpuops.sim.server import SimServer, start
from tests.cli.conftest import LAB_POLICY

NAMES = ("fra", "muc", "ber")


@pytest.fixture
def servers(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimServer]]:
    """Three vCenters of one account, whose password file holds a wrong password."""
    with ExitStack() as stack:
        started = [stack.enter_context(start("lab", seed=seed, clock="stepped")) for seed in range(len(NAMES))]
        password = tmp_path / "password"
        password.write_text("not the password", encoding="utf-8")
        password.chmod(0o600)
        tables = (
            f'[targets.{name}]\nhost = "{server.url}"\nusername = "{server.username}"\n'
            f'password_file = "{password}"\nca_file = "{server.ca_file}"\n'
            for name, server in zip(NAMES, started, strict=True)
        )
        (tmp_path / "config.toml").write_text("\n".join(tables), encoding="utf-8")
        monkeypatch.setenv("GPUOPS_CONFIG", str(tmp_path / "config.toml"))
        yield started


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def refused(mocker: MockerFixture) -> Callable[[], int]:
    """Says how many logins these vCenters have refused so far."""
    logins = mocker.spy(Sessions, "accepts")
    return lambda: logins.spy_return_list.count(False)


def correct(servers: list[SimServer], tmp_path: Path) -> None:
    for server in servers:
        server.world.sessions.passwords[server.username] = "the new password"
    (tmp_path / "password").write_text("the new password", encoding="utf-8")


def test_a_password_that_one_vcenter_refused_is_sent_to_no_other(
    servers: list[SimServer], refused: Callable[[], int], tmp_path: Path
) -> None:
    first = run("inventory", "--site", "all")
    assert first.exit_code == 5
    assert refused() == 1
    singly = [run("inventory", "--vcenter", name) for name in NAMES]
    assert {result.exit_code for result in singly} == {5}
    assert refused() == 2, "only the vCenter that refused it is asked again"
    assert sum("was not asked" in " ".join(result.stderr.split()) for result in singly) == 2
    correct(servers, tmp_path)
    assert run("inventory", "--site", "all").exit_code == 0
    assert refused() == 2


def test_a_return_logs_in_all_the_same(servers: list[SimServer]) -> None:
    assert run("inventory", "--vcenter", "fra").exit_code == 5
    servers[1].world.sessions.passwords[servers[1].username] = "not the password"
    assert run("inventory", "--vcenter", "muc").exit_code == 5
    returned = run("rotate", "day", "--policy", LAB_POLICY, "--yes", "--vcenter", "muc")
    assert returned.exit_code == 0, returned.output
