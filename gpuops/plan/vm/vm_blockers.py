"""Checks for `attach` and `detach`: whether a VM can be changed or moved now, to which hosts, and how it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gpuops.advise.managed_vms import lending_reason, managed_elsewhere
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.plan import Wave
from gpuops.plan.core.rejection import READ_HOST, READ_VM, Rejection, some_names
from gpuops.plan.core.scope import device_hosts, gpu_hosts
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ShutDownGuest
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import Placement, Wanted, WantsVgpu


class PowerPolicy(StrEnum):
    """What may be done with the VM's power."""

    REFUSE = "refuse"
    """A running VM is left alone: nothing is changed."""
    CYCLE = "cycle"
    """A running VM is stopped for the change and started again; a stopped one stays off."""
    OFF = "off"
    """A running VM is stopped for the change and left off."""
    ON = "on"
    """The VM runs afterwards."""


POWER_HELP: Final = (
    "What a change may do to a running VM. refuse: nothing is changed. cycle: it is stopped and started again. "
    "off: it is stopped. on: the VM runs afterwards, changed or not."
)


class MoveMode(StrEnum):
    """How a VM may be moved to a host that has the GPU."""

    COLD = "cold"


@dataclass(frozen=True, slots=True)
class PowerMoves:
    """The waves before and after a change."""

    before: tuple[Wave, ...] = ()
    after: tuple[Wave, ...] = ()
    warnings: tuple[str, ...] = ()


def power_blockers(vm: Vm, policy: PowerPolicy) -> tuple[Rejection, ...]:
    """Return why the VM's power state forbids the change: devices change only on a VM that is off (vSphere API,
    ReconfigVM_Task)."""
    if managed_elsewhere(vm) is not None:
        return ()  # another power state would not help: `VM_CHECKS` has the reason
    match vm.power:
        case PowerState.OFF:
            return ()
        case PowerState.ON if policy is not PowerPolicy.REFUSE:
            return ()
        case PowerState.ON:
            hint = "--power cycle stops it for the change and starts it again, --power off leaves it off"
            return (Rejection(vm.name, "runs; its devices change only while it is off", hint=hint),)
        case PowerState.SUSPENDED:
            hint = "resume it and shut its guest down, then try again"
            rule = "is suspended: its devices cannot change, and a power-off would lose the guest's unsaved state"
            return (Rejection(vm.name, rule, hint=hint),)
        case _:
            return (Rejection(vm.name, "its power state cannot be read", hint=READ_VM),)


def power_moves(vm: Vm, policy: PowerPolicy, host: str | None) -> PowerMoves:
    """Return the stop before the change and the start after it, as the policy allows."""
    if policy is PowerPolicy.REFUSE:
        return PowerMoves()
    runs = vm.power is PowerState.ON
    starts = policy is PowerPolicy.ON or (policy is PowerPolicy.CYCLE and runs)
    after = (Wave(f"start {vm.name}", (PowerOnVm(vm.ref, host),)),) if starts else ()
    if not runs:
        return PowerMoves(after=after)
    if vm.tools_running is False:
        warning = f"{vm.name} is powered off without a guest shutdown, because VMware Tools do not run in it"
        return PowerMoves((Wave(f"stop {vm.name}", (PowerOffVm(vm.ref),)),), after, (warning,))
    # A guest that does not shut down in time may be busy: it is not powered off.
    return PowerMoves((Wave(f"stop {vm.name}", (ShutDownGuest(vm.ref),)),), after)


_NEEDED_PROPERTIES: Final = ("config", "runtime", "recentTask", "rootSnapshot", "summary.config")
"""Property paths of a VM that gpuops must be able to read before it changes the VM."""

Reason = str | tuple[str, str]
"""A reason, or (reason, hint)."""
VmCheck = Callable[[Vm], Reason | None]


def reachable(vm: Vm) -> Reason | None:
    if vm.connected is None:
        return "its connection state cannot be read", READ_VM
    return None if vm.connected else "is not connected: vCenter cannot reach its host or its files"


def no_template(vm: Vm) -> Reason | None:
    if vm.template is None:
        return "whether it is a template cannot be read", READ_VM
    return ("is a template", "convert it to a virtual machine, or deploy one from it") if vm.template else None


def no_question(vm: Vm) -> Reason | None:
    if vm.question is None:
        return None
    return f"waits for an answer: {vm.question}", "answer it in the vSphere Client"


def no_task(vm: Vm) -> Reason | None:
    if not vm.tasks:
        return None
    tasks = ", ".join(f"{task.name} ({task.state})" for task in vm.tasks)
    return f"a task is pending: {tasks}", "try again when the task has ended"


def readable(vm: Vm) -> Reason | None:
    hidden = [path for path in vm.unreadable if path.startswith(_NEEDED_PROPERTIES)]
    if hidden:
        return f"this login cannot read all properties of the VM: {', '.join(hidden)}", READ_VM
    if vm.devices is None or vm.extra_config is None:
        return "its devices and settings were not read"
    return None


def refuse_lending_vm(vm: Vm) -> Reason | None:
    lending = lending_reason(vm) if vm.power is not PowerState.OFF else None
    return None if lending is None else (lending, f"run {command('pool reclaim', server=called(vm))} first")


VM_CHECKS: Final[tuple[VmCheck, ...]] = (
    managed_elsewhere,
    refuse_lending_vm,
    reachable,
    no_template,
    no_question,
    no_task,
    readable,
)


def state_blockers(vm: Vm) -> tuple[Rejection, ...]:
    """Return every reason why the VM cannot be changed now, except its power state (`power_blockers`)."""
    rejections = []
    for check in VM_CHECKS:
        reason = check(vm)
        if reason is not None:
            rule, hint = reason if isinstance(reason, tuple) else (reason, "")
            rejections.append(Rejection(vm.name, rule, hint=hint))
    return tuple(rejections)


_MOST_NAMES: Final = 5
"""How many hosts a hint names at most."""


def hosts_for(
    vm: Vm, named: str | None, move: MoveMode | None, inventory: Inventory, *, any_device: bool = False
) -> tuple[Host, ...]:
    """Return the hosts on which the VM may run: the named host, or its own. With a move also all others with GPUs.

    `any_device`: hosts with any device for VMs count, not only those with GPUs. Raises HostNotFound.
    """
    if named is not None:
        return (inventory.find_host(named),)
    current_host = inventory.host_of(vm)
    own_host = (current_host,) if current_host else ()
    return (*own_host, *others_with_gpus(vm, inventory, any_device=any_device)) if move else own_host


def move_blockers(
    vm: Vm, hosts: tuple[Host, ...], move: MoveMode | None, inventory: Inventory
) -> tuple[Rejection, ...]:
    """Return why the VM cannot be on these hosts without a move."""
    current_host = inventory.host_of(vm)
    if current_host is None and not move:
        return (_host_unreadable(vm),)
    if current_host is None or move or current_host in hosts:
        return ()
    hint = "use --move cold to move it there while it is off"
    return (Rejection(vm.name, f"is registered on {current_host.name}, not on {hosts[0].name}", hint=hint),)


def unreadable_profiles(vm: Vm, hosts: tuple[Host, ...], inventory: Inventory) -> tuple[Rejection, ...]:
    """Return a rejection for each host, of these and the VM's own, whose profiles cannot be read."""
    rejections = [] if inventory.host_of(vm) else [_host_unreadable(vm)]
    for host in hosts:
        if host.profiles is None and not host.readable:
            unreadable = Rejection(host.name, "the vGPU profiles it offers cannot be read", hint=READ_HOST)
            rejections.append(unreachable(host) or unreadable)
    return tuple(rejections)


def _host_unreadable(vm: Vm) -> Rejection:
    hint = "give this login the read-only role on that host"
    return Rejection(vm.name, "the host it is registered on cannot be read", hint=hint)


def suggest_other_hosts(needs: Wanted, inventory: Inventory, catalog: Catalog) -> Rejection | None:
    """Return a rejection whose hint names the other hosts that could take the VM, or that offer its profiles.

    None if the VM's host is unknown, or the other rejections already say that no host offers the profiles.
    """
    vm, current_host = needs.vm, inventory.host_of(needs.vm)
    if current_host is None:
        return None
    any_device = any(not isinstance(demand, WantsVgpu) for demand in needs.demands)
    other_hosts = others_with_gpus(vm, inventory, any_device=any_device)
    able_hosts = [
        host.name
        for host in other_hosts
        if isinstance(place(replace(needs, hosts=(host.ref,)), inventory, catalog), Placement)
    ]
    if able_hosts:
        return suggest_move(vm, able_hosts, current_host)
    profiles = tuple(dict.fromkeys(demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)))
    offering = [host for host in (*other_hosts, current_host) if profiles and all(map(host.offers, profiles))]
    full_hosts = [host.name for host in offering if host is not current_host]
    if full_hosts:
        verbs = "offer it too, but have" if len(full_hosts) > 1 else "offers it too, but has"
        hint = f"{some_names(full_hosts, _MOST_NAMES)} {verbs} no room now"
        return Rejection(vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)
    if not current_host.readable or offering or not profiles:
        return None
    hint = "gpuops inventory --hosts shows the profiles each host offers"
    return Rejection(vm.name, f"no other host offers {', '.join(profiles)} either", hint=hint)


def suggest_move(vm: Vm, names: Sequence[str], current_host: Host) -> Rejection:
    """Return the rejection because of the VM's own host, with a hint to these hosts."""
    hint = f"{some_names(names, _MOST_NAMES)} can take it: use --move cold to move it there while it is off"
    return Rejection(vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)


def others_with_gpus(vm: Vm, inventory: Inventory, *, any_device: bool = False) -> tuple[Host, ...]:
    """Return, sorted by name, all other hosts with GPUs; with `any_device` those with any device for VMs."""
    hosts = device_hosts(inventory) if any_device else gpu_hosts(inventory)
    return tuple(sorted((host for host in hosts if host.ref != vm.host), key=lambda host: host.name))
