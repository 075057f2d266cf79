"""Two real processes on one vCenter: one is stopped (SIGSTOP) for longer than its lease, the other takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuops.errors import Locked, PartlyDone
from gpuops.execute.rotation import rotation_lock
from gpuops.plan.rotation.lease_rules import KEY, TTL_S, parse_lease
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.nights.interrupted import zombie
from tests.wire.conftest import target_of

ROOT = Path(__file__).parents[3]
RETURNED = (0, PartlyDone.exit_code)
"""How a return by the markers ends: it names VMs that are marked and as they were, for ten minutes."""


class Jumps:
    """Two machines and one vCenter that `rotate init` has been at."""

    def __init__(self, server: SimServer, states: Path) -> None:
        self.server, self._states = server, states
        server.world.custom_fields.define("gpuops.rotation")

    @contextmanager
    def start(self, machine: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        assert self.server.ca_file is not None
        path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))  # there: the moment that is here
        with subprocess.Popen(
            [sys.executable, "-m", "tests.nights.interrupted.zombie", str(self.server.port), self.server.ca_file,
             str(self._states / machine), *arguments],
            stdin=subprocess.PIPE, encoding="utf-8", cwd=ROOT, env=os.environ | {"PYTHONPATH": path},
        ) as process:  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(f"{self.server.password}\n")
            process.stdin.close()
            try:
                yield process
            finally:
                process.kill()  # a stopped one too

    def run(self, machine: str, *arguments: str) -> int:
        with self.start(machine, *arguments) as process:
            return process.wait(timeout=100)

    def run_here(self, machine: str, run_name: str) -> int:
        """Run it in this process, for runs that are not stopped."""
        return zombie.work(target_of(self.server), self._states / machine, run_name, zombie.Sleeper("", 0, 0.0))

    def until_stopped(self, process: subprocess.Popen[str]) -> None:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before it came there"

    def lease_runs_out(self) -> None:
        with self.server.world.lock:
            self.server.world.clock.advance(TTL_S + 1)

    def running(self) -> set[str]:
        vms = self.server.world.by_type("VirtualMachine")
        return {vm.name for vm in vms if vm.name.startswith("vdi-") and vm.state.power is Power.ON}

    def effects(self) -> list[str]:
        """What was done to VMs, the lease aside."""
        return [f"{change.method} {change.name}" for change in self.server.world.ledger if change.name != "bare"]

    def holder(self) -> str:
        [bare] = [vm for vm in self.server.world.by_type("VirtualMachine") if vm.name == "bare"]
        lease = parse_lease(bare.state.option(KEY) or "")
        return lease.nonce if lease is not None else ""


@pytest.mark.drawn_cases(4)
@pytest.mark.timeout(240)
@pytest.mark.long
@pytest.mark.parametrize("wakes", ["in the midst of the other", "after the other has ended"])
@pytest.mark.parametrize("slept_s", [TTL_S + 1, 0.0], ids=["its clock went on", "its clock stood still"])
def test_a_stopped_night_wakes_after_its_lease_changed_hands(wakes: str, slept_s: float, tmp_path: Path) -> None:
    with SimServer(build("lab")) as server:
        jumps = Jumps(server, tmp_path)
        evening = jumps.running()
        with jumps.start("a", "night", "SuspendVm", "2", str(slept_s)) as night:
            jumps.until_stopped(night)
            holder_before = jumps.holder()
            assert holder_before
            jumps.lease_runs_out()
            stop = ("ResumeVm", "1", str(slept_s)) if "midst" in wakes else ()
            with jumps.start("b", "return", *stop) as second_process:
                if stop:
                    jumps.until_stopped(second_process)
                    assert jumps.holder() not in ("", holder_before)
                else:
                    assert second_process.wait(timeout=100) in RETURNED
                before = jumps.effects()
                night.send_signal(signal.SIGCONT)
                assert night.wait(timeout=100) == Locked.exit_code
                late = jumps.effects()[len(before) :]
                assert len(late) <= 1, f"the old holder did {late}"
                assert all(effect.startswith("SuspendVM_Task") for effect in late)
                second_process.send_signal(signal.SIGCONT)
                assert second_process.wait(timeout=100) in (*RETURNED, Locked.exit_code)
        jumps.lease_runs_out()
        assert jumps.run("b", "return") in RETURNED
        # a step in flight at the stop is reported once: another run has resumed its desktop
        assert jumps.run("a", "day") in (0, PartlyDone.exit_code)
        assert jumps.running() == evening
        before = jumps.effects()
        # of another it knows only that vCenter took it and does not show it: for ten minutes it may still come
        assert jumps.run("a", "day") in (0, PartlyDone.exit_code)
        assert jumps.run("a", "later") == 0
        assert jumps.effects() == before, "a second morning did something"
        assert jumps.running() == evening
        assert server.world.bugs == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_night_that_hangs_is_ended_by_the_morning_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process that is stopped between two suspends holds the lock; the morning ends it and takes its lease."""
    monkeypatch.setattr(rotation_lock, "GRACE_S", zombie.GRACE_S)
    with SimServer(build("lab")) as server:
        jumps = Jumps(server, tmp_path)
        evening = jumps.running()
        with jumps.start("a", "night", "SuspendVm", "2", "0") as night:
            jumps.until_stopped(night)
            assert jumps.run_here("a", "day") == Locked.exit_code
            assert jumps.run_here("a", "much later") == 0
            assert night.wait(timeout=10) == -signal.SIGKILL
        assert jumps.running() == evening
        assert jumps.run_here("a", "day") == 0
        assert server.world.bugs == []
