"""Made-up fleets in which whole GPUs and NVLink groups are reserved (vSphere 9.0): what the planner promises is started
in the simulated vCenter, and `capacity` tells what it counts. The generator knows no rule of the planner.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import pytest
from pyVmomi import vmodl

from gpuops.model.vcenter.vm import DynamicDevice
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.operations.host_admission import place
from gpuops.sim.operations.reserved_capacity import capacity as counted
from gpuops.sim.operations.vms.power import start
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.board import board
from gpuops.sim.world import World
from tests.nights.world.showing import Showing
from tests.plan.placement.test_reserved_fleets import MANAGED, apply_reservation
from tests.plan.snapshots import catalog
from tests.sample import every_nth, mostly_long

ADDRESSES: Final = ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0")
GROUP: Final = "Nvidia:2@grid_a100d-80c%NVLink"


def fleet(rng: random.Random) -> dict[str, Any]:
    """Hosts whose GPUs are given whole, some with a label; VMs of ours and of others, on or off."""
    boards = rng.sample(["a40", "l40s", "a100"], 2)
    hosts: list[dict[str, Any]] = []
    for number in range(rng.randint(1, 3)):
        key, label = rng.choice(boards), rng.choice([None, None, "training"])
        gpus = [
            {"board": key, "at": at, "node": int(index > 1), "passthrough": rng.random() < 0.8, "label": label}
            for index, at in enumerate(ADDRESSES[: rng.randint(1, 4)])
        ]
        hosts.append(
            {"name": f"esx-{number}-{{}}.made", "count": rng.randint(1, 2), "group": f"group-{number}",
             "model": "server", "driver": "580.65.05", "gpus": gpus}
        )  # fmt: skip
    ids = {key: f"10de:{board(key).device_id:04x}" for key in boards}
    vms: list[dict[str, Any]] = []
    for number in range(rng.randint(2, 6)):
        key, is_kubernetes = rng.choice(boards), rng.random() < 0.4
        label = rng.choice([None, None, "training"])
        vms.append(
            {"name": f"{'kube' if is_kubernetes else 'own'}-{number}-{{}}", "count": rng.randint(1, 3), "folder": "vms",
             "on": f"group-{rng.randrange(len(hosts))}", "guest": "linux", "cpus": 1, "memory_gib": 8, "disk_gib": 1,
             "devices": [{"dynamic": {"boards": [key], "label": label}}], "power": rng.choice(["fit", "off", "off"]),
             **({"managed_by": MANAGED} if is_kubernetes else {})}
        )  # fmt: skip
    profiles: list[dict[str, Any]] = [
        {"name": f"{key}-any", "devices": [ids[key]], **({"label": "training"} if rng.random() < 0.3 else {})}
        for key in boards
    ]
    if rng.random() < 0.5:
        profiles.append({"name": "either", "devices": list(ids.values())})
    server = {"vendor": "Made", "model": "Up", "cpu": "CPU", "cores_per_socket": 64, "cpu_mhz": 3000,
              "memory_gib": 2048}  # fmt: skip
    return {
        "description": "made up", "start": "2026-11-02T18:00:00Z", "api_version": "9.0.0.0", "datacenter": "dc",
        "models": {"server": server}, "guests": {"linux": {"id": "ubuntu64Guest", "name": "Linux"}},
        "datastores": [{"name": "store", "capacity_gib": 99999, "free_gib": 90000}], "networks": ["net"],
        "clusters": [{"name": "cluster", "hosts": hosts}], "direct_path_profiles": profiles,
        "reservations": [
            {"profile": profile["name"], "units": rng.randint(1, 3), "on": "cluster", "vms": ["kube-*"]}
            for profile in rng.sample(profiles, rng.randint(1, len(profiles)))
        ],
        "vms": vms,
    }  # fmt: skip


def world_of(seed: int) -> World:
    return build_declared(ScenarioFile.of(fleet(random.Random(f"{seed}:devices"))), seed=seed)


def check(seed: int, counts: Counter[str]) -> None:
    """VMs of ours and of others start in any order, ours where the planner says: vCenter refuses none of these."""
    world, rng = world_of(seed), random.Random(f"{seed}:order")
    names = [vm.name for vm in world.by_type("VirtualMachine")]
    rng.shuffle(names)
    for name in names:
        snapshot = Showing(world).inventory()
        check_capacity(world, seed, counts)
        vm = snapshot.find_vm(name)
        if vm.power is None or vm.power.value != "poweredOff":
            continue
        if vm.managed_by is not None:
            counts["kube"] += start_by_others(world.get(vm.ref))
            continue
        (device,) = vm.devices or ()
        assert isinstance(device, DynamicDevice), device
        allowed = tuple(f"{vendor:04x}:{kind:04x}" for vendor, kind in device.allowed)
        plan = Attach(name, dynamic=True, device_type=allowed, label=device.label, power=PowerPolicy.ON).plan(
            snapshot, catalog(), snapshot.taken_at
        )
        if plan.steps:
            refused = apply_reservation(world, plan.steps)
            assert refused == "", f"seed {seed}: {name} was promised, and vCenter says {refused}"
            counts["started"] += 1
        elif any("are reserved for other VMs" in str(rejection) for rejection in plan.rejections):
            counts["reserved"] += 1
            with pytest.raises(vmodl.MethodFault):
                place(world.get(vm.ref), world.get(vm.host or ""))


def start_by_others(vm: Any) -> int:
    """1 where vCenter starts it, on whichever host."""
    try:
        host, admitted = place(vm, None)
    except vmodl.MethodFault:
        return 0
    start(vm, host.moid, admitted.seats, admitted.held)
    return 1


def check_capacity(world: World, seed: int, counts: Counter[str]) -> None:
    """No more than vCenter's `remaining` less `unusedReservation` is free of what one profile alone is about."""
    snapshot = Showing(world).inventory()
    assert snapshot.reservations is not None
    [part] = capacity(snapshot, catalog()).now.parts
    for reservation in snapshot.reservations.devices:
        free = max(0, reservation.remaining - reservation.unused_reservation)
        like = {
            gpu_kind: room
            for gpu_kind, room in part.devices.items()
            if (gpu_kind.vendor_id, gpu_kind.device_id) in reservation.allowed
        }
        rooms = [room for gpu_kind, room in like.items() if reservation.label in (None, gpu_kind.label)]
        assert sum(room.at_least for room in rooms) <= free, f"seed {seed}: {reservation} is counted as {like}"
        beside = [
            other_reservation
            for other_reservation in snapshot.reservations.devices
            if {*other_reservation.allowed} & {*reservation.allowed} and other_reservation is not reservation
        ]
        if len(rooms) == 1 and not any(other_reservation.unused_reservation for other_reservation in beside):
            assert rooms[0].at_least == free, f"seed {seed}: {reservation} is counted as {like}"
            counts["equal"] += 1


@pytest.mark.parametrize("nth", mostly_long([3, 1], [3]))
def test_no_whole_gpu_is_promised_that_is_reserved(nth: int) -> None:
    counts: Counter[str] = Counter()
    for seed in every_nth(range(60), nth):
        check(seed, counts)
    assert min(counts[key] for key in ("started", "reserved", "kube")) > 10 // nth**2, counts


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_such_fleets() -> None:
    """A quarter of them a run."""
    counts: Counter[str] = Counter()
    for seed in every_nth(range(60, 2060), 4):
        check(seed, counts)
    print(counts)
    assert min(counts[key] for key in ("started", "reserved", "kube", "equal")) > 20, counts


def test_two_gpus_of_an_nvlink_bridge_are_one_group() -> None:
    """What of it is left is counted in sets of GPUs, and a VM on one of them takes the set."""
    declared = fleet(random.Random(0)) | {
        "clusters": [{"name": "cluster", "hosts": [
            {"name": "esx.made", "group": "group-0", "model": "server", "driver": "580.65.05", "gpus": [
                {"board": "a100d", "at": at, "node": 0, "nvlink": f"pair-{index // 2}"}
                for index, at in enumerate(ADDRESSES)
            ]}
        ]}],
        "direct_path_profiles": [{"name": "pair", "group": GROUP}],
        "reservations": [{"profile": "pair", "units": 1, "on": "cluster", "vms": ["kube-*"]}],
        "vms": [
            {"name": name, "folder": "vms", "on": "group-0", "guest": "linux", "cpus": 1, "memory_gib": 8,
             "disk_gib": 1, "devices": devices, "power": "off"}
            for name, devices in {"kube-1": [{"group": GROUP}], "own-1": [{"vgpu": "grid_a100d-80c"}],
                                  "own-2": [{"group": GROUP}]}.items()
        ],
    }  # fmt: skip
    world = build_declared(ScenarioFile.of(declared), seed=0)
    (cluster,) = world.by_type("ClusterComputeResource")
    (reserved,) = world.direct_path.reservations

    def figures() -> tuple[int, int, int, int]:
        device_counts = counted(reserved.config, cluster.hosts(), world.direct_path.reservations)
        return device_counts.consumed, device_counts.remaining, device_counts.max, device_counts.unused_reservation

    vms = {vm.name: vm for vm in world.by_type("VirtualMachine")}
    assert figures() == (0, 2, 2, 1)
    assert start_by_others(vms["own-1"]) == 1, "one set of two is left"
    assert figures() == (0, 1, 2, 1)
    assert start_by_others(vms["own-2"]) == 0, "it is reserved"
    assert start_by_others(vms["kube-1"]) == 1
    assert figures() == (1, 0, 2, 0)
