"""The table of everything that a fault rule can let happen, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuops.sim.happenings import hosts as host_happenings
from gpuops.sim.happenings import site as site_happenings
from gpuops.sim.happenings import vms as vm_happenings
from gpuops.sim.trouble.happening import Happening

HAPPENINGS: Final[Mapping[str, Happening]] = {
    "vm.deleted": Happening("VirtualMachine", vm_happenings.deleted),
    "vm.recreated": Happening("VirtualMachine", vm_happenings.recreated),
    "vm.inaccessible": Happening("VirtualMachine", vm_happenings.inaccessible),
    "vm.renamed": Happening("VirtualMachine", vm_happenings.renamed),
    "vm.refiled": Happening("VirtualMachine", vm_happenings.refiled),
    "vm.stopped": Happening("VirtualMachine", vm_happenings.stopped),
    "vm.reverted_to_off": Happening("VirtualMachine", vm_happenings.reverted_to_off),
    "vm.reverted_to_suspended": Happening("VirtualMachine", vm_happenings.reverted_to_suspended),
    "vm.reverted_to_running": Happening("VirtualMachine", vm_happenings.reverted_to_running),
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
