"""Bars: why a host starts no VM now, or may not, however small the VM: the rules of placement turned into room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuops.advise.capacity import Slots
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.capacity.beside import free_on


@dataclass(frozen=True, slots=True)
class Bar:
    """One reason."""

    because: str
    certain: bool
    vgpus_alone: bool = False
    """GPUs given whole are not concerned."""


def bars(host: Host, inventory: Inventory) -> Iterator[Bar]:
    """Every reason on this host."""
    if host.connected is not True:
        known = host.connected is False
        yield Bar("is not connected" if known else "whether it is connected cannot be read", known)
    if host.in_maintenance is not False:
        known = host.in_maintenance is True
        yield Bar("is in maintenance mode" if known else "whether it is in maintenance mode cannot be read", known)
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    if cluster is not None and cluster.admission is not None and host.ref in cluster.admission.failover_hosts:
        yield Bar("is a failover host of HA", True)
    if free_on(host, inventory).memory_at_most_mib == 0:
        yield Bar("has no memory left to reserve", True)
    if host.profiles is None:
        yield Bar("the vGPU profiles it offers cannot be read", False, vgpus_alone=True)


def behind(found: Sequence[Bar], slots: Slots) -> Slots:
    """What of the room is left behind these bars."""
    for bar in found:
        slots = Slots(0, 0, bar.because) if bar.certain else slots.doubted(bar.because)
    return slots
