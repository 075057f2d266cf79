"""Reports settings of a VM of a cluster that an admin has changed since it was made. They are not changed back.

The level of latency sensitivity is not read, only its reservation of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.cluster import ClusterWish, LatencyLevel

HUGE_PAGES: Final = "sched.mem.lpage.enable1GPage"
"""The extraConfig key for guest memory in pages of 1 GiB, which requires that all memory is reserved (VMware vSphere
Resource Management, "Backing Guest vRAM with 1GB Pages")."""


def changes_by_admin(wish: ClusterWish, vm: Vm, host: Host) -> Iterator[str]:
    """Yield a line for each setting that differs from the file; settings that cannot be read are left out."""
    for is_so in _differences(wish, vm, host):
        yield f"{vm.name}: {is_so}: it stays so, only gpuops cluster delete and create make it anew"


def _differences(wish: ClusterWish, vm: Vm, host: Host) -> Iterator[str]:
    if wish.cpus is not None and vm.vcpus not in (None, wish.cpus):
        yield f"has {vm.vcpus} vCPUs, and the file says {wish.cpus}"
    if wish.memory_mib is not None and vm.memory_mib not in (None, wish.memory_mib):
        yield f"has {vm.memory_mib} MiB of memory, and the file says {wish.memory_mib}"
    reserved = vm.memory_reservation_mib
    if reserved is not None and vm.memory_mib is not None and reserved < vm.memory_mib:
        yield f"has {reserved} MiB of its {vm.memory_mib} MiB of memory reserved"
    if wish.huge_pages and vm.extra_config is not None and vm.extra_config.get(HUGE_PAGES, "").upper() != "TRUE":
        yield "has no pages of 1 GiB, which the file says"
    if wish.latency is LatencyLevel.HIGH and None not in (vm.vcpus, vm.cpu_reservation_mhz, host.cpu_mhz):
        whole = (vm.vcpus or 0) * (host.cpu_mhz or 0)
        if (vm.cpu_reservation_mhz or 0) < whole:
            yield f"has {vm.cpu_reservation_mhz} of {whole} MHz reserved, and the file says latency sensitivity high"
