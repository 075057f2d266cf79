"""Whether a VM can start on a host; `rotation` asks it of desktops and ML VMs."""

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
    """A question to hosts. `certain` takes a doubt for a no: desktops are not suspended on a guess."""

    catalog: Catalog
    certain: bool

    def refusals(self, vm: Vm, host: Host, world: Inventory) -> tuple[Rejection, ...]:
        """Every reason why the VM cannot start on the host as this snapshot shows it; empty = it can."""
        wanted = Wanted(vm=vm, demands=demands_of(vm.devices or (), pins_of(vm)), hosts=(host.ref,))
        found = refusals(wanted, host, world)
        if found:
            return found
        seating = seat(vm, wanted.demands, host, world, self.catalog)
        doubts = tuple(Rejection(host.name, doubt) for doubt in seating.doubts) if self.certain else ()
        return seating.rejections or doubts


def around(host: Host, world: Inventory, *others: Vm) -> Inventory:
    """The snapshot with one host, its VMs and these others: what it takes to think about that host, and nothing more.

    Each projected step copies the snapshot's VMs; a night tries thousands of steps, on ten thousand VMs.
    """
    near = {vm.ref: vm for vm in (*world.vms_on(host), *others)}
    return replace(world, vms=near, hosts={host.ref: world.hosts[host.ref]})
