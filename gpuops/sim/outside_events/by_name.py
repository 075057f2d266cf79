"""The table of outside events by the names that fault rules have for them (`happening: vm.deleted`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuops.sim.fault_injection.outside_event import OutsideEvent
from gpuops.sim.outside_events import hosts as host_events
from gpuops.sim.outside_events import vcenter as vcenter_events
from gpuops.sim.outside_events import vms as vm_events

OUTSIDE_EVENTS: Final[Mapping[str, OutsideEvent]] = {
    "vm.deleted": OutsideEvent("VirtualMachine", vm_events.delete),
    "vm.recreated": OutsideEvent("VirtualMachine", vm_events.recreate),
    "vm.cloned": OutsideEvent("VirtualMachine", vm_events.clone),
    "vm.inaccessible": OutsideEvent("VirtualMachine", vm_events.make_inaccessible),
    "vm.renamed": OutsideEvent("VirtualMachine", vm_events.rename),
    "vm.refiled": OutsideEvent("VirtualMachine", vm_events.move_to_parent_folder),
    "vm.managed": OutsideEvent("VirtualMachine", vm_events.hand_over),
    "vm.stopped": OutsideEvent("VirtualMachine", vm_events.power_off),
    "vm.reverted_to_off": OutsideEvent("VirtualMachine", vm_events.revert_to_off),
    "vm.reverted_to_suspended": OutsideEvent("VirtualMachine", vm_events.revert_to_suspended),
    "vm.reverted_to_running": OutsideEvent("VirtualMachine", vm_events.revert_to_running),
    "vm.started": OutsideEvent("VirtualMachine", vm_events.power_on),
    "vm.suspended": OutsideEvent("VirtualMachine", vm_events.suspend),
    "vm.elsewhere": OutsideEvent("VirtualMachine", vm_events.move_to_another_host),
    "vm.busy": OutsideEvent("VirtualMachine", vm_events.start_task),
    "vm.restarted_by_ha": OutsideEvent("VirtualMachine", vm_events.restart_by_ha),
    "vm.ignores_shutdown": OutsideEvent("VirtualMachine", vm_events.ignore_shutdowns, is_unseen=True),
    "vm.used": OutsideEvent("VirtualMachine", vm_events.use_desktop),
    "gpu.failed": OutsideEvent("HostSystem", host_events.fail_gpu),
    "gpu.lost": OutsideEvent("HostSystem", host_events.lose_gpu),
    "host.crashed": OutsideEvent("HostSystem", host_events.crash),
    "host.disconnected": OutsideEvent("HostSystem", host_events.disconnect),
    "host.readded": OutsideEvent("HostSystem", host_events.remove_and_add_again),
    "host.stays_down": OutsideEvent("HostSystem", host_events.stay_down_after_reboot),
    "host.reverted": OutsideEvent("HostSystem", host_events.revert_module_options),
    "host.forgets_mig": OutsideEvent("HostSystem", host_events.forget_mig),
    "host.driverless": OutsideEvent("HostSystem", host_events.boot_without_driver),
    "host.maintenance": OutsideEvent("HostSystem", host_events.enter_maintenance),
    "scheduler.changed": OutsideEvent("HostSystem", host_events.change_scheduler),
    "host.other_driver": OutsideEvent("HostSystem", host_events.replace_driver),
    "gpu.mixed_size": OutsideEvent("HostSystem", host_events.turn_mixed_size_on),
    "gpu.same_size": OutsideEvent("HostSystem", host_events.turn_mixed_size_off),
    "datastore.full": OutsideEvent("Datastore", vcenter_events.fill_datastore),
    "datastore.gone": OutsideEvent("Datastore", vcenter_events.lose_datastore),
    "vcenter.away": OutsideEvent("", vcenter_events.lose_vcenter, is_unseen=True),
    "vcenter.restarted": OutsideEvent("", vcenter_events.restart_vcenter, is_unseen=True),
    "vcenter.rebuilt": OutsideEvent("", vcenter_events.rebuild_vcenter),
    "password.changed": OutsideEvent("", vcenter_events.change_passwords, is_unseen=True),
    "permission.revoked": OutsideEvent("", vcenter_events.revoke_permissions, is_unseen=True),
    "reads.frozen": OutsideEvent("ManagedEntity", vcenter_events.freeze_properties, is_unseen=True),
    "certificate.changed": OutsideEvent("", vcenter_events.change_certificate, is_unseen=True),
    "clock.skewed": OutsideEvent("", vcenter_events.skew_clock, is_unseen=True),
}
