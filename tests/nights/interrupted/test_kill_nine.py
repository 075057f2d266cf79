"""A real kill -9 of a real process at points of a night, over the wire: resume ends it, once more does nothing.

And whatever a killed process leaves behind (journal, lock, temporary files, what it said) does not hold the password.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.canary import CANARY, require_no_file
from tests.nights.interrupted import victim
from tests.sample import every_nth
from tests.wire.conftest import target_of


class Reference:
    """One night of the scenario `lab`, in a state directory of its own."""

    def __init__(self, server: SimServer, state_dir: Path) -> None:
        self._server = server
        self._state_dir = state_dir

    def run(self, what: str, point: int = 0) -> tuple[int, int]:
        """(exit code or minus the signal, points passed). Nothing that is left then holds the password."""
        ended = victim.run(target_of(self._server), self._state_dir, what, point)
        assert require_no_file(self._state_dir.parent) > 1, "there is something to look through"
        return ended

    def running(self) -> set[str]:
        """The desktops that run."""
        vms = self._server.world.by_type("VirtualMachine")
        return {vm.name for vm in vms if vm.name.startswith("vdi-") and vm.state.power is Power.ON}

    def effects(self) -> int:
        return len(self._server.world.ledger)

    def markers(self) -> int:
        key = self._server.world.custom_fields.define("gpuops.rotation")
        return sum(1 for vm in self._server.world.by_type("VirtualMachine") if vm.state.attributes.get(key))


def points(what: str, tmp_path: Path) -> int:
    """How many points a half has when nobody kills it."""
    with SimServer(build("lab"), password=CANARY) as server:
        night = Reference(server, tmp_path)
        if what == "day":
            assert night.run("night")[0] == 0
        code, passed = night.run(what)
        assert code == 0
        return passed


def killed_and_resumed(what: str, point: int, state_dir: Path) -> None:
    with SimServer(build("lab"), password=CANARY) as server:
        night = Reference(server, state_dir)
        evening = night.running()
        if what == "day":
            assert night.run("night")[0] == 0
        assert night.run(what, point)[0] == -signal.SIGKILL
        assert night.run("resume")[0] == 0
        before = night.effects()
        assert night.run("resume")[0] == 0
        assert night.effects() == before, "a second resume did something"
        assert night.run("day")[0] == 0
        assert night.running() == evening
        assert night.markers() == 0
        assert [entry for entry in server.world.ledger if CANARY in repr(entry)] == []


@pytest.mark.long
def test_a_night_is_killed_and_resumed(tmp_path: Path) -> None:
    killed_and_resumed("night", 23, tmp_path / "own" / "state")


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("what", ["night", "day"])
def test_a_real_kill_at_every_eighth_point(what: str, tmp_path: Path) -> None:
    found = points(what, tmp_path / "counted" / "state")
    assert found > 40
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        done = [
            pool.submit(killed_and_resumed, what, point, tmp_path / str(point) / "state")
            for point in every_nth(range(1, found + 1), 8)
        ]
    for each in done:
        each.result()
    print(f"{found} points of rotate {what}")
