"""Rotation, where to: the hosts that a VM of the queue may start on at all."""

from __future__ import annotations

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import pins_of


def hosts_for(vm: Vm, queued: QueuedVm, world: Inventory) -> list[Host]:
    """Its own host first, then by name those it may be moved to."""
    own = world.host_of(vm)
    # A pin is an address of its own host, a node a number there: a bare move would leave both meaning something else.
    may_move = queued.relocate and not bound(vm)
    others = [host for host in world.hosts.values() if host is not own and host.gpus] if may_move else []
    usable = [own, *sorted(others, key=lambda host: host.name)] if own else others
    return [host for host in usable if host.connected is True and host.in_maintenance is False]


def bound(vm: Vm) -> bool:
    """Whether the VM's configuration names a GPU or a NUMA node of the host it is on."""
    return bool(pins_of(vm) or (vm.extra_config or {}).get(AFFINITY_KEY))
