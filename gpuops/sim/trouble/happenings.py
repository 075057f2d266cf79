"""Happenings by name: what goes on in a vCenter beside the calls of the client that is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import UsageError
from gpuops.sim.registry import is_kind_of
from gpuops.sim.trouble import host_happenings, site_happenings, vm_happenings

if TYPE_CHECKING:
    from gpuops.sim.managed_object import ManagedObject
    from gpuops.sim.trouble.rule import Rule
    from gpuops.sim.world import World

Act = Callable[[Any, "Rule"], None]


@dataclass(frozen=True, slots=True)
class Happening:
    """What happens to each object of a type that is meant; with no type, once to the whole site."""

    kind: str
    act: Act
    is_unseen: bool = False
    """Whether it changes what vCenter answers and nothing that it keeps."""

    def strike(self, world: World, targets: Iterable[ManagedObject], rule: Rule) -> None:
        """Let it happen."""
        if not self.kind:
            self.act(world, rule)
            return
        for target in targets:
            if is_kind_of(target.wsdl_name, self.kind):
                self.act(target, rule)


HAPPENINGS: Final[Mapping[str, Happening]] = {
    "vm.deleted": Happening("VirtualMachine", vm_happenings.deleted),
    "vm.recreated": Happening("VirtualMachine", vm_happenings.recreated),
    "vm.inaccessible": Happening("VirtualMachine", vm_happenings.inaccessible),
    "vm.renamed": Happening("VirtualMachine", vm_happenings.renamed),
    "vm.refiled": Happening("VirtualMachine", vm_happenings.refiled),
    "vm.stopped": Happening("VirtualMachine", vm_happenings.stopped),
    "vm.started": Happening("VirtualMachine", vm_happenings.started),
    "vm.suspended": Happening("VirtualMachine", vm_happenings.suspended),
    "vm.elsewhere": Happening("VirtualMachine", vm_happenings.elsewhere),
    "vm.busy": Happening("VirtualMachine", vm_happenings.busy),
    "vm.used": Happening("VirtualMachine", vm_happenings.used),
    "gpu.failed": Happening("HostSystem", host_happenings.gpu_failed),
    "host.crashed": Happening("HostSystem", host_happenings.crashed),
    "host.disconnected": Happening("HostSystem", host_happenings.disconnected),
    "host.stays_down": Happening("HostSystem", host_happenings.stays_down),
    "host.reverted": Happening("HostSystem", host_happenings.reverted),
    "host.forgets_mig": Happening("HostSystem", host_happenings.forgets_mig),
    "host.driverless": Happening("HostSystem", host_happenings.driverless),
    "host.maintenance": Happening("HostSystem", host_happenings.maintenance_wanted),
    "scheduler.changed": Happening("HostSystem", host_happenings.scheduler_changed),
    "gpu.same_size": Happening("HostSystem", host_happenings.mixed_size_off),
    "datastore.full": Happening("Datastore", site_happenings.full),
    "datastore.gone": Happening("Datastore", site_happenings.gone),
    "vcenter.away": Happening("", site_happenings.away, is_unseen=True),
    "vcenter.restarted": Happening("", site_happenings.restarted, is_unseen=True),
    "permission.revoked": Happening("", site_happenings.revoked, is_unseen=True),
    "reads.frozen": Happening("ManagedEntity", site_happenings.frozen, is_unseen=True),
    "certificate.changed": Happening("", site_happenings.another_certificate, is_unseen=True),
    "clock.skewed": Happening("", site_happenings.skewed, is_unseen=True),
}


def named(name: str) -> Happening:
    """The happening of that name. Raises UsageError."""
    try:
        return HAPPENINGS[name]
    except KeyError:
        raise UsageError(f"no happening is called {name!r}", hint=f"there are: {', '.join(HAPPENINGS)}") from None
