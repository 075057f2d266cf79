"""Reads fault files, which say what goes wrong in a served simulated vCenter.

faults:
  - T2                              # a fault of the catalogue, by its id
  - fault: V1                       # the same, with other values for some keys
    target: "vdi-00*"
    skip: 3
  - effect: fault                   # a rule that is not in the catalogue
    method: PowerOnVM_Task
    fault: NoCompatibleHost
    probability: 0.1
    times: null
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.fault_injection.injector import checked_rule
from gpuops.sim.fault_injection.rule import OutsideEvent, Rule, rules_of
from gpuops.sim.outside_events import host_events, vm_events

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
    "datastore.full": OutsideEvent("Datastore", host_events.fill_datastore),
    "datastore.gone": OutsideEvent("Datastore", host_events.lose_datastore),
    "vcenter.away": OutsideEvent("", host_events.lose_vcenter, is_unseen=True),
    "vcenter.restarted": OutsideEvent("", host_events.restart_vcenter, is_unseen=True),
    "vcenter.rebuilt": OutsideEvent("", host_events.rebuild_vcenter),
    "password.changed": OutsideEvent("", host_events.change_passwords, is_unseen=True),
    "permission.revoked": OutsideEvent("", host_events.revoke_permissions, is_unseen=True),
    "reads.frozen": OutsideEvent("ManagedEntity", host_events.freeze_properties, is_unseen=True),
    "certificate.changed": OutsideEvent("", host_events.change_certificate, is_unseen=True),
    "clock.skewed": OutsideEvent("", host_events.skew_clock, is_unseen=True),
}


def read(path: Path) -> tuple[Rule, ...]:
    """The rules of a fault file, in its order. Raises UsageError, which names the entry."""
    document = parse_yaml(read_text(path), str(path))
    if not isinstance(document, dict) or set(document) != {"faults"} or not isinstance(document["faults"], list):
        raise UsageError(
            f"the fault file {path} is not one list named `faults`",
            hint="write it as `faults: [T2, {fault: V1, skip: 3}]`",
        )
    return parse(document["faults"], str(path))


def parse(entries: Sequence[Any], where: str) -> tuple[Rule, ...]:
    """Return the rules of these entries, in their order. Raises UsageError, which names `where` and the entry."""
    rules: list[Rule] = []
    for number, entry in enumerate(entries, start=1):
        try:
            rules += [checked_rule(rule, OUTSIDE_EVENTS) for rule in _rules(entry)]
        except UsageError as error:
            raise UsageError(f"{where}, fault {number}: {error.message}", hint=error.hint) from error
    return tuple(rules)


def _rules(entry: Any) -> tuple[Rule, ...]:
    if isinstance(entry, str):
        return rules_of(entry)
    if not isinstance(entry, Mapping):
        raise UsageError(
            f"{entry!r} is neither the id of a fault nor a rule",
            hint="write an id such as T2, or a rule such as {fault: V1, skip: 3}",
        )
    if "effect" in entry:  # a rule of its own, whose `fault` is one of the API and not an id of the catalogue
        return (Rule.from_json(entry),)
    return rules_of(str(entry.get("fault")), {key: value for key, value in entry.items() if key != "fault"})
