"""Whether a VM can start on a host; `rotation` uses it for desktops and ML VMs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, pins_of
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Wanted, demands_of


@dataclass(frozen=True, slots=True)
class Room:
    """Checks whether hosts have room for VMs. If `certain`, a doubt counts as a refusal: desktops are never suspended
    on a guess."""

    catalog: Catalog
    certain: bool

    def refusals(self, vm: Vm, host: Host, world: Inventory) -> tuple[Rejection, ...]:
        """Return every reason why the VM cannot start on the host in this snapshot; empty if it can."""
        needs = Wanted(vm=vm, demands=demands_of(vm.devices or (), pins_of(vm)), hosts=(host.ref,))
        host_refusals = refusals(needs, host, world)
        if host_refusals:
            return host_refusals
        seating = seat(vm, needs.demands, host, world, self.catalog)
        doubts = tuple(Rejection(host.name, doubt) for doubt in seating.doubts) if self.certain else ()
        return seating.rejections or doubts


def around(host: Host, world: Inventory, *extra_vms: Vm) -> Inventory:
    """Return the snapshot reduced to one host, its VMs and the extra VMs.

    Each projected step copies the VMs of the snapshot, and the plan of a night tries thousands of steps on ten thousand
    VMs: with the small snapshot that stays fast.
    """
    near = {vm.ref: vm for vm in (*world.vms_on(host), *extra_vms)}
    return replace(world, vms=near, hosts={host.ref: world.hosts[host.ref]})
