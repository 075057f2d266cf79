"""Where a VM may go according to the options of a request, and where else it could go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import device_hosts, gpu_hosts
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import Placement, Wanted, WantsVgpu
from gpuops.plan.vm.power import MoveMode

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
    hint = f"{_some(offering)} {'offer' if len(offering) > 1 else 'offers'} it too, without room for it now"
    return Rejection(needs.vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)


def able_instead(vm: Vm, names: Sequence[str], current_host: Host) -> Rejection:
    """Return the rejection by the VM's own host, with these hosts as the alternative."""
    hint = f"{_some(names)} can take it: --move cold moves it there while it is off"
    return Rejection(vm.name, f"is registered on {current_host.name}, which cannot take it", hint=hint)


def _nowhere(current_host: Host, needs: Wanted) -> Rejection | None:
    """Return the rejection if no host, neither the VM's own nor another, offers the profiles."""
    if not current_host.readable or _offers(current_host, needs) or not _profiles(needs):
        return None
    hint = "gpuops inventory --hosts shows the profiles each host offers"
    return Rejection(needs.vm.name, f"no other host offers {', '.join(_profiles(needs))} either", hint=hint)


def _some(names: Sequence[str]) -> str:
    """Join the first few names: a fleet has hundreds of hosts, and one is enough to continue."""
    further = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {further} more" if further > 0 else "")


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
