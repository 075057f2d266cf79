"""Two runners and one lease, in every order in which the steps of both may go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations

import pytest

from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.lease.lock_vm import LockVm
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.rotation import lease as rules
from gpuops.plan.rotation.lease import CALL_TIMEOUT_S, TTL_S
from tests.execute.lease.leased import LOCK, read_lease
from tests.execute.small_vcenter import START, SmallVcenter, World, _vm, small_world


@dataclass
class Runner:
    """Its steps: look, write, then twice check and act. Each is one call to vCenter, and the other may come between."""

    world: World
    name: str
    held: HeldLease | None = None
    acted: list[int] = None  # type: ignore[assignment]
    refused: bool = False

    def steps(self) -> Iterator[None]:
        self.acted = []
        passed = lambda: (self.world.now - START).total_seconds()  # noqa: E731
        vm = LockVm(SmallVcenter(self.world), LOCK)
        lease_read = vm.look()
        began = passed()
        now = vm.seen.taken_at
        yield
        if rules.holder_of(lease_read, now, ()) is not None:
            self.refused = True
            return
        next_lease = rules.next_lease(lease_read, self.name, self.name, now)
        if not vm.write(next_lease):
            self.refused = True
            return
        self.held = HeldLease(vm, next_lease, began + TTL_S, passed)
        yield
        for _ in range(3):
            objection = self.held.objection()
            yield
            if objection is not None:
                return
            lease_read = read_lease(self.world)
            assert lease_read is not None
            self.acted.append(lease_read.epoch if lease_read.nonce == self.name else -lease_read.epoch)


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.parametrize("pause_s", [TTL_S + 1, 0.0, TTL_S / 2, TTL_S - CALL_TIMEOUT_S])
def test_every_order_of_two_runners_steps(pause_s: float) -> None:
    """`pause_s` passes before one of the steps, each in turn: as long as a process may be stopped."""
    orders = 0
    for chosen in combinations(range(12), 6):
        for paused in range(0, 12, 3):
            orders += 1
            world = small_world()
            world.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
            runners = [Runner(world, "a"), Runner(world, "b")]
            going = [runner.steps() for runner in runners]
            for number in range(12):
                if number == paused:
                    world.now += timedelta(seconds=pause_s)
                next(going[number in chosen], None)
            strays = [sum(epoch < 0 for epoch in runner.acted or ()) for runner in runners]
            assert sum(strays) <= 1, (chosen, paused)
            if pause_s + CALL_TIMEOUT_S < TTL_S:
                assert strays == [0, 0]
                assert sum(bool(runner.acted) for runner in runners) <= 1
    assert orders == 924 * 4
