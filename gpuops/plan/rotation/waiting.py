"""Rotation, who waits: the VMs that the entries of the ML queue mean, in the order in which they are served.

A VM that is named is meant by that entry alone. A pattern means VMs that carry a GPU device and are in no pool: a
desktop whose name happens to fit is not started as an ML VM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuops.errors import VmAmbiguous, VmNotFound
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm, is_pattern
from gpuops.model.rotation import Policy
from gpuops.model.vm import PowerState, Vm


@dataclass(frozen=True, slots=True)
class Waiting:
    """One VM of the queue, or an entry that means none."""

    queued: QueuedVm
    name: str
    vm: Vm | None
    reason: str = ""
    """Why it does not start tonight, whatever room there is; empty = it may."""

    @property
    def runs(self) -> bool:
        return self.vm is not None and self.vm.power is PowerState.ON


def waiting(policy: Policy, inventory: Inventory) -> tuple[Waiting, ...]:
    """Every VM of the queue: the higher priority first, then as the file has it, then by name."""
    entries = sorted(policy.ml, key=lambda queued: -queued.priority)
    named = [(queued, name, *_find(name, inventory)) for queued in entries for name in queued.names]
    claimed = {vm.ref for _, _, vm, _ in named if vm is not None}
    called: dict[str, str] = {}
    found: list[Waiting] = []
    for queued, name, vm, reason in named:
        if vm is not None and called.setdefault(vm.ref, name) != name:
            found.append(Waiting(queued, name, None, f"{name} is {called[vm.ref]}, which is in the queue already"))
            continue
        if not is_pattern(name) or vm is not None:
            found.append(Waiting(queued, name, vm, reason or _hindrance(queued, vm)))
            continue
        fitting = [vm for vm in _fitting(name, policy, inventory) if vm.ref not in claimed]
        claimed |= {vm.ref for vm in fitting}
        found += [Waiting(queued, vm.name, vm, _hindrance(queued, vm)) for vm in fitting]
        if not fitting:
            found.append(Waiting(queued, name, None, f"no VM with a GPU device is called {name!r}"))
    return tuple(found)


def _find(name: str, inventory: Inventory) -> tuple[Vm | None, str]:
    try:
        return inventory.find_vm(name), ""
    except (VmNotFound, VmAmbiguous) as error:
        return None, error.message


def _fitting(pattern: str, policy: Policy, inventory: Inventory) -> Iterable[Vm]:
    wanted = QueuedVm(pattern)
    vms = [vm for vm in inventory.vms.values() if wanted.fits(vm.name) and vm.devices and policy.pool_of(vm) is None]
    return sorted(vms, key=lambda vm: (vm.name, vm.ref))


def _hindrance(queued: QueuedVm, vm: Vm | None) -> str:
    if vm is None or vm.power is PowerState.ON:
        return "runs already" if vm else ""
    if vm.power is not PowerState.OFF:
        return f"is not powered off ({vm.power or 'its power state cannot be read'})"
    if vm.connected is not True or vm.unreadable or vm.devices is None or vm.template:
        return "cannot be read whole, or is not connected"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    if not queued.carried_by(vm):
        return f"carries {', '.join(vm.profiles) or 'no vGPU'}, the policy says {queued.profile}"
    return ""
