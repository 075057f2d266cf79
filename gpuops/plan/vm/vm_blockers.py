"""Why a VM's GPU devices cannot be changed now, why it cannot move, and where it may go by the options of a request.

`attach` and `detach` use it; it also says what a change does to a running VM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gpuops.advise.managed_vms import lends, managed_elsewhere
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.plan import Rejection, Wave
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.scope import device_hosts, gpu_hosts
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ShutDownGuest, Step
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
    """Why the VM's power state forbids the change (vSphere API, ReconfigVM_Task: devices change only on a VM off)."""
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
            rule = "is suspended: its devices cannot change, and a power-off would discard what its guest holds"
            return (Rejection(vm.name, rule, hint=hint),)
        case _:
            return (Rejection(vm.name, "its power state cannot be read"),)


def power_moves(vm: Vm, policy: PowerPolicy, host: str | None) -> PowerMoves:
    """Return the stop before the change and the start after it that the policy asks for."""
    if policy is PowerPolicy.REFUSE:
        return PowerMoves()
    runs = vm.power is PowerState.ON
    starts = policy is PowerPolicy.ON or (policy is PowerPolicy.CYCLE and runs)
    after = (Wave(f"start {vm.name}", (PowerOnVm(vm.ref, host),)),) if starts else ()
    if not runs:
        return PowerMoves(after=after)
    stop, warnings = _stop(vm)
    return PowerMoves((Wave(f"stop {vm.name}", (stop,)),), after, warnings)


def _stop(vm: Vm) -> tuple[Step, tuple[str, ...]]:
    if vm.tools_running is False:
        return PowerOffVm(vm.ref), (f"{vm.name} is powered off hard: no VMware Tools run in its guest",)
    # Not powered off after the grace: a guest that does not shut down may be in the middle of something.
    return ShutDownGuest(vm.ref), ()


_NEEDED: Final = ("config", "runtime", "recentTask", "rootSnapshot", "summary.config")
"""Property paths of a VM without which a change would be made blind."""

Reason = str | tuple[str, str]
"""A reason, or a reason and the next move."""
VmCheck = Callable[[Vm], Reason | None]


def reachable(vm: Vm) -> Reason | None:
    if vm.connected is None:
        return "its connection state cannot be read"
    return None if vm.connected else "is not connected: its host or its files are out of reach"


def no_template(vm: Vm) -> Reason | None:
    if vm.template is None:
        return "whether it is a template cannot be read"
    return ("is a template", "convert it to a virtual machine first, or deploy one from it") if vm.template else None


def no_question(vm: Vm) -> Reason | None:
    if vm.question is None:
        return None
    return f"waits for an answer: {vm.question}", "answer it in the vSphere Client (gpuops answers no question)"


def no_task(vm: Vm) -> Reason | None:
    if not vm.tasks:
        return None
    tasks = ", ".join(f"{task.name} ({task.state})" for task in vm.tasks)
    return f"a task is pending: {tasks}", "try again when it is done"


def readable(vm: Vm) -> Reason | None:
    hidden = [path for path in vm.unreadable if path.startswith(_NEEDED)]
    if hidden:
        return f"cannot be read whole by this login: {', '.join(hidden)}"
    if vm.devices is None or vm.extra_config is None:
        return "its devices and settings were not read"
    return None


def lends_nothing(vm: Vm) -> Reason | None:
    lending = lends(vm) if vm.power is not PowerState.OFF else None
    return None if lending is None else (lending, f"{command('pool reclaim', server=called(vm))} drains it first")


VM_CHECKS: Final[tuple[VmCheck, ...]] = (
    managed_elsewhere,
    lends_nothing,
    reachable,
    no_template,
    no_question,
    no_task,
    readable,
)


def state_blockers(vm: Vm) -> tuple[Rejection, ...]:
    """Return every reason to refuse a change in the VM's state, except its power state."""
    reasons = (check(vm) for check in VM_CHECKS)
    return tuple(_rejection(vm, reason) for reason in reasons if reason is not None)


def _rejection(vm: Vm, reason: Reason) -> Rejection:
    rule, hint = reason if isinstance(reason, tuple) else (reason, "")
    return Rejection(vm.name, rule, hint=hint)


_FEW: Final = 5


def hosts_for(
    vm: Vm, named: str | None, move: MoveMode | None, inventory: Inventory, *, whole: bool = False
) -> tuple[Host, ...]:
    """Return the hosts to check: the named host, or the VM's own host; with a move also every other host with GPUs, or
    with `whole` with any device for VMs.

    Raises HostNotFound.
    """
    if named is not None:
        return (inventory.find_host(named),)
    current_host = inventory.host_of(vm)
    stay = (current_host,) if current_host else ()
    return (*stay, *others_with_gpus(vm, inventory, whole=whole)) if move else stay


def move_blockers(
    vm: Vm, hosts: tuple[Host, ...], move: MoveMode | None, inventory: Inventory
) -> tuple[Rejection, ...]:
    """Return why the VM cannot be on these hosts without a move."""
    current_host = inventory.host_of(vm)
    if current_host is None and not move:
        return (_host_unreadable(vm),)
    if current_host is None or move or current_host in hosts:
        return ()
    hint = "--move cold moves it there while it is off"
    return (Rejection(vm.name, f"is registered on {current_host.name}, not on {hosts[0].name}", hint=hint),)


def unread(vm: Vm, hosts: tuple[Host, ...], inventory: Inventory) -> tuple[Rejection, ...]:
    """Return why it is unknown what the VM's own host or one of these hosts offers; empty if all can be read."""
    host_rejections = () if inventory.host_of(vm) else (_host_unreadable(vm),)
    unreadable_hosts = (host for host in hosts if host.profiles is None and not host.readable)
    return (
        *host_rejections,
        *(
            unreachable(host) or Rejection(host.name, "the vGPU profiles it offers cannot be read")
            for host in unreadable_hosts
        ),
    )


def _host_unreadable(vm: Vm) -> Rejection:
    hint = "this login needs the read-only role on that host"
    return Rejection(vm.name, "the host it is registered on cannot be read", hint=hint)


def able_elsewhere(needs: Wanted, inventory: Inventory, catalog: Catalog) -> Rejection | None:
    """Return a rejection that names the hosts that could take the VM if its own host cannot."""
    current_host = inventory.host_of(needs.vm)
    whole = any(not isinstance(demand, WantsVgpu) for demand in needs.demands)
    other_hosts = others_with_gpus(needs.vm, inventory, whole=whole)
    able = [host.name for host in other_hosts if _takes(host, needs, inventory, catalog)]
    offering = [host.name for host in other_hosts if _offers(host, needs) and host.name not in able]
    if current_host is None:
        return None
    if not (able or offering):
        return _nowhere(current_host, needs)
    if able:
        return able_instead(needs.vm, able, current_host)
    hint = f"{some_names(offering, _FEW)} {'offer' if len(offering) > 1 else 'offers'} it too, without room for it now"
    return Rejection(needs.vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)


def able_instead(vm: Vm, names: Sequence[str], current_host: Host) -> Rejection:
    """Return the rejection by the VM's own host, with these hosts as the alternative."""
    hint = f"{some_names(names, _FEW)} can take it: --move cold moves it there while it is off"
    return Rejection(vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)


def _nowhere(current_host: Host, needs: Wanted) -> Rejection | None:
    """Return the rejection if no host, neither the VM's own nor another, offers the profiles."""
    if not current_host.readable or _offers(current_host, needs) or not _profiles(needs):
        return None
    hint = "gpuops inventory --hosts shows the profiles each host offers"
    return Rejection(needs.vm.name, f"no other host offers {', '.join(_profiles(needs))} either", hint=hint)


def others_with_gpus(vm: Vm, inventory: Inventory, *, whole: bool = False) -> tuple[Host, ...]:
    """Return, by name, every other host with GPUs, or with `whole` with any device for VMs."""
    hosts = device_hosts(inventory) if whole else gpu_hosts(inventory)
    return tuple(sorted((host for host in hosts if host.ref != vm.host), key=lambda host: host.name))


def _takes(host: Host, needs: Wanted, inventory: Inventory, catalog: Catalog) -> bool:
    return isinstance(place(replace(needs, hosts=(host.ref,)), inventory, catalog), Placement)


def _offers(host: Host, needs: Wanted) -> bool:
    profiles = _profiles(needs)
    return bool(profiles) and all(host.offers(profile) for profile in profiles)


def _profiles(needs: Wanted) -> tuple[str, ...]:
    return tuple(dict.fromkeys(demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)))
