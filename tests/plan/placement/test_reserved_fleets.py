"""Made-up fleets with reservations and VMs of others, made without any rule of the planner: what it promises is started
in the simulated vCenter, which refuses what takes reserved slots; and `capacity` counts what vCenter counts.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import pytest
from pyVmomi import vmodl

from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, Step
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.operations.host_admission import place
from gpuops.sim.operations.vms.power import start
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.board import GpuMode, board
from gpuops.sim.world import World
from tests.nights.world.showing import Showing
from tests.plan.snapshots import catalog
from tests.sample import every_nth, mostly_long

BOARDS: Final = {
    "a40": (GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE),
    "l40s": (GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE),
    "a100": (GpuMode.SAME_SIZE, GpuMode.MULTI_INSTANCE),
}
ADDRESSES: Final = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0")
MANAGED: Final = {"extension": "com.vmware.vcenter.wcp"}


def fleet(rng: random.Random) -> dict[str, Any]:
    """A cluster or two of a few hosts; VMs of ours and of others that run as far as they fit, others that are off."""
    hosts, groups = [], []
    for group in range(rng.randint(1, 3)):
        key = rng.choice(list(BOARDS))
        mode = rng.choice(BOARDS[key])
        gpus = [
            {"board": key, "at": at, "node": int(number > 0), "mode": mode.value}
            for number, at in enumerate(ADDRESSES[: rng.randint(1, 3)])
        ]
        types = [profile.name for profile in board(key).types_in(mode) if profile.name.endswith(("q", "c"))]
        hosts.append(
            {"name": f"esx-{group}-{{}}.made", "count": rng.randint(1, 2), "group": f"group-{group}", "model": "server",
             "driver": "580.65.05", "policy": rng.choice(["performance", "consolidation"]), "gpus": gpus}
        )  # fmt: skip
        groups.append((f"group-{group}", types))
    vms: list[dict[str, Any]] = []
    for number in range(rng.randint(3, 10)):
        group_name, types = rng.choice(groups)
        is_kubernetes = rng.random() < 0.4
        vms.append(
            {"name": f"{'kube' if is_kubernetes else 'own'}-{number}-{{}}", "count": rng.randint(1, 4), "folder": "vms",
             "on": group_name, "guest": "linux", "cpus": 1, "memory_gib": 1, "disk_gib": 1,
             "devices": [{"vgpu": rng.choice(types)}], "power": rng.choice(["fit", "fit", "off"]),
             **({"managed_by": MANAGED} if is_kubernetes else {})}
        )  # fmt: skip
    reserved = rng.sample([name for _, types in groups for name in dict.fromkeys(types)], rng.randint(1, 2))
    profiles = list(dict.fromkeys(name for _, types in groups for name in types))
    server = {"vendor": "Made", "model": "Up", "cpu": "CPU", "cores_per_socket": 64, "cpu_mhz": 3000,
              "memory_gib": 2048}  # fmt: skip
    return {
        "description": "made up", "start": "2026-11-02T18:00:00Z", "api_version": rng.choice(["9.0.0.0", "9.1.0.0"]),
        "datacenter": "dc", "models": {"server": server}, "guests": {"linux": {"id": "ubuntu64Guest", "name": "Linux"}},
        "datastores": [{"name": "store", "capacity_gib": 99999, "free_gib": 90000}], "networks": ["net"],
        "clusters": [{"name": "cluster", "hosts": hosts}],
        "direct_path_profiles": [{"name": name, "vgpu": name} for name in profiles],
        "reservations": [
            {"vgpu": name, "units": rng.randint(1, 6), "on": "cluster", "vms": ["kube-*"]} for name in reserved
        ],
        "vms": vms,
    }  # fmt: skip


def world_of(seed: int) -> World:
    return build_declared(ScenarioFile.of(fleet(random.Random(f"{seed}:fleet"))), seed=seed)


def apply_reservation(world: World, steps: tuple[Step, ...]) -> str:
    """What the steps of an attach come to in vCenter; empty = done, else why it refuses the start."""
    for step in steps:
        if isinstance(step, PowerOnVm):
            vm = world.get(step.vm)
            try:
                host, admitted = place(vm, world.get(step.host))
            except vmodl.MethodFault as fault:
                return "; ".join(fault_detail.message or "" for fault_detail in fault.faultMessage) or str(fault.msg)
            start(vm, host.moid, admitted.seats, admitted.held)
        else:
            assert isinstance(step, ReconfigureVm), step
    return ""


def check_starts(seed: int, counts: Counter[str]) -> None:
    """Every VM of ours that is off is started where the planner says, until it says no."""
    world = world_of(seed)
    names = [vm.name for vm in world.by_type("VirtualMachine")]
    random.Random(f"{seed}:order").shuffle(names)
    for name in names:
        snapshot = Showing(world).inventory()
        vm = snapshot.find_vm(name)
        if vm.power is None or vm.power.value != "poweredOff":
            continue
        plan = Attach(name, profile=vm.profiles[0], power=PowerPolicy.ON).plan(snapshot, catalog(), snapshot.taken_at)
        if vm.managed_by is not None:
            counts["managed"] += 1
            assert not plan.steps, f"seed {seed}: {name} is managed, and {plan.steps} are planned"
            assert any("managed by" in str(rejection) for rejection in plan.rejections)
        elif plan.steps and not plan.warnings:
            refused = apply_reservation(world, plan.steps)
            assert refused == "", f"seed {seed}: {name} was promised, and vCenter says {refused}"
            counts["started"] += 1
        elif any("reserved" in str(rejection) for rejection in plan.rejections):
            counts["reserved"] += 1
            try:
                place(world.get(vm.ref), None)
            except vmodl.MethodFault:
                counts["refused by vCenter too"] += 1


def check_capacity(seed: int, counts: Counter[str]) -> None:
    """What is free of each profile in the cluster is what vCenter's `remaining` leaves after `unusedReservation`."""
    snapshot = Showing(world_of(seed)).inventory()
    assert snapshot.reservations is not None
    [part] = capacity(snapshot, catalog()).now.parts
    for reserved_capacity in snapshot.reservations.capacities:
        slots = part.fits[reserved_capacity.profile].slots if reserved_capacity.profile in part.fits else None
        free = max(0, reserved_capacity.remaining - reserved_capacity.unused_reservation)
        if slots is None:
            assert reserved_capacity.remaining == 0, f"seed {seed}: {reserved_capacity} is not counted"
            continue
        assert slots.at_least <= free, f"seed {seed}: {reserved_capacity} is counted as {slots}"
        if slots.at_least == free:
            counts["equal"] += 1
        else:
            assert slots.because, f"seed {seed}: {reserved_capacity} is counted as {slots}, and nothing says why"
            counts[f"less: {slots.because.partition(' ')[2][:40]}"] += 1


FEW: Final = (*range(60), 164, 4493)
"""In 164 a GPU of mixed sizes may take of what is reserved: how its vGPUs lie vCenter does not tell. In 4493 a start is
expected on one GPU, and the host puts it on another, which is one of these."""
MANY: Final = range(60, 2060)


@pytest.mark.parametrize("nth", mostly_long([3, 1], [3]))
def test_nothing_reserved_is_promised_and_no_vm_of_others_touched(nth: int) -> None:
    counts: Counter[str] = Counter()
    for seed in every_nth(FEW, nth):
        check_starts(seed, counts)
    assert min(counts[key] for key in ("managed", "started", "reserved")) * nth > 10, counts


@pytest.mark.long
def test_capacity_counts_what_vcenter_counts() -> None:
    counts: Counter[str] = Counter()
    for seed in FEW:
        check_capacity(seed, counts)
    assert counts["equal"] > 100, counts


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_thousands_of_fleets() -> None:
    """A quarter of them a run."""
    counts: Counter[str] = Counter()
    for seed in every_nth(MANY, 4):
        check_starts(seed, counts)
        check_capacity(seed, counts)
    print(counts)
    assert min(counts[key] for key in ("managed", "started", "reserved", "equal")) > 200, counts
