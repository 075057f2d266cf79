"""The ready file and the simulator's own door, as another process uses them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import LoginRefused, TargetError, UsageError, VcenterUnreachable
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.sim.wire.sim_client import ReadyFile, SimClient
from gpuops.sim.world import World
from tests.sim.objects.test_tasks import machine
from tests.sim.small_world import small_world


def test_the_ready_file_round_trips_and_is_private(server: SimServer, tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    sim_client.write(path, sim_client.of(server))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sim_client.read(path) == sim_client.of(server)
    assert list(tmp_path.iterdir()) == [path]


def test_a_ready_file_hides_the_password_in_its_repr(server: SimServer) -> None:
    assert server.password not in repr(sim_client.of(server))


@pytest.mark.parametrize("content", [None, "", "[]", '{"url": "https://127.0.0.1/sdk"}'])
def test_what_is_no_ready_file_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ready.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TargetError, match=r"ready\.json"):
        sim_client.read(path)


def test_the_ledger_is_read_from_outside(world: World, server: SimServer, si: Any) -> None:
    remote = SimClient(sim_client.of(server))
    machine(si).PowerOnVM_Task()
    assert remote.ledger() == []
    remote.advance(10)
    (entry,) = remote.ledger()
    assert (entry["method"], entry["name"], entry["after"]) == ("PowerOnVM_Task", "ml-01", {"power": "poweredOn"})
    assert remote.ledger(after_sequence=1) == []
    assert remote.bugs() == []


def test_trouble_is_injected_from_outside(server: SimServer, si: Any) -> None:
    remote = SimClient(sim_client.of(server))
    remote.inject(Rule(Effect.HTTP, method="CurrentTime", times=None))
    with pytest.raises(Exception, match="503"):
        si.CurrentTime()
    remote.clear_injected()
    si.CurrentTime()


def test_state_is_saved_and_restored_by_whoever_built_the_world(world: World, server: SimServer) -> None:
    remote = SimClient(sim_client.of(server))
    with pytest.raises(UsageError, match="no state"):
        remote.state()
    saved_state: dict[str, Any] = {"vms": 3}
    world.state_hooks = (lambda: dict(saved_state), saved_state.update)
    assert remote.state() == {"vms": 3}
    remote.restore({"vms": 4})
    assert saved_state == {"vms": 4}


def test_the_door_wants_the_password(server: SimServer) -> None:
    wrong = ReadyFile(server.url, server.username, "wrong", server.ca_file, server.pid)
    with pytest.raises(LoginRefused):
        SimClient(wrong).ledger()


def test_over_tls_with_its_own_authority() -> None:
    with SimServer(small_world()) as server:
        remote = SimClient(sim_client.of(server))
        assert remote.clock()["mode"] == "stepped"
    with pytest.raises(VcenterUnreachable):
        remote.clock()
