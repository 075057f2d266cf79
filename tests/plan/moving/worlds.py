"""Small worlds to defragment: hosts of A40 in same-size mode, where each GPU is written as the sizes on it in GiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.placement.project import project
from tests.plan import snapshots
from tests.plan.snapshots import catalog, gpu, host, inventory, on_gpu

ROOM = {48: 1, 24: 2, 16: 3, 12: 4, 8: 6}
"""vGPUs of each size that an A40 takes (NVIDIA AI Enterprise docs, vGPU types)."""
GiB = 1024

Sizes = Sequence[int]


def address(number: int) -> str:
    return f"0000:{16 + number:02x}:00.0"


def world(
    *hosts: Sequence[Sizes],
    policy: AssignmentPolicy = AssignmentPolicy.CONSOLIDATION,
    mode: VgpuMode = VgpuMode.SAME_SIZE,
    memory_gib: int = 8,
    host_gib: Mapping[int, int] | None = None,
    **fields: Any,
) -> Inventory:
    """Hosts whose GPUs hold VMs of these sizes, all free to move: `world([[8, 8], []], [[24]])` has two hosts.

    VMs are called `vm-HOST-GPU-NUMBER`, counted from 1. `fields` are those of every VM.
    """
    placed_hosts: list[Host] = []
    vms: list[Vm] = []
    for number, gpus in enumerate(hosts, 1):
        bare = [gpu(address(at), "a40", at % 2, mode) for at in range(len(gpus))]
        esx = replace(host(f"esx-{number:02}", *bare), assignment_policy=policy)
        if host_gib and number in host_gib:
            esx = replace(esx, memory_mib=host_gib[number] * GiB)
        for at, sizes in enumerate(gpus):
            mine = [_vm(len(vms) + n, number, at + 1, n + 1, size, memory_gib) for n, size in enumerate(sizes)]
            vms += [replace(vm, **fields) for vm in mine]
            esx = on_gpu(esx, address(at), *(vm.ref for vm in mine))
        placed_hosts.append(esx)
    cluster = Cluster("domain-c1", "gpu", drs_enabled=True, rules=())
    return replace(inventory(placed_hosts, vms), clusters={"domain-c1": cluster}, hot_migrate_enabled=True)


def by_chance(
    chance: Random, hosts: int, gpus: int, sizes: Sequence[int] = (24, 16, 8)
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """What is on the GPUs of some hosts: each holds nothing, or some vGPUs of one size."""
    return tuple(tuple(_on_one(chance, sizes) for _ in range(gpus)) for _ in range(hosts))


def _on_one(chance: Random, sizes: Sequence[int]) -> tuple[int, ...]:
    size = chance.choice((*sizes, 0))
    return (size,) * chance.randint(1, min(3, ROOM[size])) if size else ()


def _vm(index: int, number: int, at: int, nth: int, size: int, memory_gib: int) -> Vm:
    return snapshots.vm(
        100 + index,
        f"vm-{number}-{at}-{nth}",
        str(number),
        f"vgpu nvidia_a40-{size}q",
        power=PowerState.ON,
        memory_mib=memory_gib * GiB,
        memory_reservation_mib=memory_gib * GiB,
    )


def free(now: Inventory) -> int:
    """GPUs that no VM is listed on."""
    return sum(not gpu.vms for esx in now.hosts.values() for gpu in esx.gpus)


def after(steps: Sequence[RelocateVm], now: Inventory) -> Inventory:
    """The snapshot after these moves, as every other plan of gpuops expects it."""
    for step in steps:
        now = project(step, now, catalog())
    return now
