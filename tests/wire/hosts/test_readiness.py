"""`readiness` and rolling changes of single hosts over real SOAP, beside a search of every order and every host.

The brute force knows a world by what the simulated vCenter has seated where; the simulator's own admission decides
whether a host that was called free empties.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gpuops import api
from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.readiness import HostReadiness, Readiness
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.sim.core.object_store import somebody
from gpuops.sim.operations import maintenance
from gpuops.sim.world import World
from tests.nights.world.showing import Showing
from tests.plan.hosts.readiness.brute_force import Small, can_be_emptied
from tests.sample import every_nth
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.rolling import Bench, Start

OPTION = "VmDevicesStunTimeTolerated"


def read_readiness(bench: Bench, **scope: Any) -> Readiness:
    return bench.on_site(lambda site: api.readiness(Scope(**scope), site.vcenter.inventory(), site))


def answer(bench: Bench, host: str) -> HostReadiness:
    [readiness] = read_readiness(bench, host=host).hosts
    return readiness


def roll(bench: Bench, host: str) -> Any:
    return bench.roll(SetScheduler(SchedulerPolicy.EQUAL_SHARE, host=host))


def one_of(size: int, number: int, host: int) -> dict[str, Any]:
    return {**desktops(host, 1, first=number), "devices": [{"vgpu": f"nvidia_a40-{size}q"}]}


def drawn(chance: Random) -> World:
    """Up to four hosts of two GPUs that spread, most of up to eight VMs on the first."""
    hosts, sizes = chance.randint(2, 4), chance.sample((48, 24, 16, 12, 8), 2)
    vms: list[dict[str, Any]] = []
    for host in range(1, hosts + 1):
        sizes_placed: list[int] = []
        for size in [chance.choice(sizes) for _ in range(2) if chance.random() < (0.9 if host == 1 else 0.4)]:
            for _ in range(chance.randint(1, 48 // size)):
                if len(vms) < 8 and _fits(size, sizes_placed):
                    sizes_placed.append(size)
                    vms.append(one_of(size, len(vms) + 1, host))
    return cluster(hosts, vms, gpus=2)


def _fits(size: int, sizes_placed: list[int]) -> bool:
    """Whether two GPUs that are given one VM after another, each to the emptier one, take this one too."""
    gpus: list[list[int]] = [[], []]
    for placed_size in (*sizes_placed, size):
        takers = [gpu for gpu in gpus if not gpu or (gpu[0] == placed_size and len(gpu) < 48 // placed_size)]
        if not takers:
            return False
        min(takers, key=len).append(placed_size)
    return True


def build_small_world(inventory: Inventory) -> Small:
    """The world as the simulator has it. Memory is ample there."""
    profiles = {vm.ref: int(vm.profiles[0][11:-1]) for vm in inventory.vms.values() if vm.vgpus}
    hosts = sorted(inventory.hosts.values(), key=lambda host: host.name)
    assert all(host.assignment_policy is AssignmentPolicy.PERFORMANCE for host in hosts)
    gpus = tuple(tuple(tuple(profiles[ref] for ref in gpu.vms or ()) for gpu in host.gpus) for host in hosts)
    return Small(gpus, (512,) * len(hosts), 8, consolidates=False)


def check(seed: int, start: Start) -> bool:
    """Whether the first host of the world of this seed can be emptied."""
    bench = start(drawn(Random(seed)))
    before = bench.places()
    truth = can_be_emptied(build_small_world(Showing(bench.world).inventory()), 0)
    readiness = answer(bench, "esx-01")
    assert readiness.proven and readiness.ready is truth, seed
    report = roll(bench, "esx-01")
    assert report.plan.feasible is truth, (seed, [str(rejection) for rejection in report.plan.rejections])
    if not truth:
        assert report.exit_code == 3 and len(bench.world.ledger) == 0, seed
        return False
    entered = [change.name for change in bench.world.ledger if change.after.get("in_maintenance")]
    assert entered == ["esx-01"], (seed, report.outcomes)
    assert report.exit_code == 0 or any("may find no GPU" in warning for warning in report.plan.warnings), seed
    if report.exit_code == 0:
        assert bench.places() == before
    return True


@pytest.mark.long
def test_a_roll_goes_where_brute_force_finds_a_way_and_nowhere_else(start: Start) -> None:
    ready = [check(seed, start) for seed in range(4)]
    assert 0 < sum(ready) < len(ready)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 300, 10))
def test_two_hundred_rolls(first: int, start: Start) -> None:
    """A quarter of them a run."""
    for seed in every_nth(range(first, first + 10), 2):
        check(seed, start)


@pytest.mark.long
def test_the_stun_is_vcenters_estimate_and_a_longer_one_than_is_tolerated_blocks(start: Start) -> None:
    """The simulator refuses such a vMotion; so the roll is refused before its first host."""
    bench = start(cluster(2, [one_of(48, 1, 1), one_of(8, 2, 2)], gpus=2, drs_options={OPTION: "60"}))
    readiness = answer(bench, "esx-01")
    assert [stays.reasons for stays in readiness.stays] == [
        ("esx-02: estimates a stun of 67 s for vdi-001, and 60 s are tolerated",)
    ]
    assert roll(bench, "esx-01").exit_code == 3
    assert len(bench.world.ledger) == 0
    other_readiness = answer(bench, "esx-02")
    assert [(stun.at_least_s, stun.at_most_s) for stun in other_readiness.stuns.values()] == [(11, 11)]
    two_gpu_bench = start(cluster(2, [one_of(48, 1, 1)], gpus=2))
    assert answer(two_gpu_bench, "esx-01").ready
    assert roll(two_gpu_bench, "esx-01").exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("drs", "options", "waits"),
    [
        ("manual", {}, True),
        ("fullyAutomated", {}, True),
        ("fullyAutomated", {"VgpuMMAutomationTimeoutSecs": "300"}, True),
        ("fullyAutomated", {"VgpuMMAutomationTimeoutSecs": "-1"}, False),
    ],
)
def test_whether_maintenance_mode_waits_is_told(start: Start, drs: str, options: dict[str, str], waits: bool) -> None:
    """And the simulated vCenter does so: without the option the VM stays, and the task goes on."""
    bench = start(cluster(2, [desktops(1, 1, first=1)], drs=drs, drs_options=options))
    assert bool(answer(bench, "esx-01").by_vcenter) is waits
    host = bench.host("esx-01")
    maintenance.enter(host, somebody(bench.world, "EnterMaintenanceMode_Task"), 0)
    bench.world.clock.advance(600)
    assert (host.state.in_maintenance, bench.places()["vdi-001"][0]) == (
        (False, "esx-01") if waits else (True, "esx-02")
    )
