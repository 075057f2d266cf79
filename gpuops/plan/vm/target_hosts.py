"""Where a VM may go, as the options of a request say, and where else it could."""

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
from gpuops.plan.placement.wanted import Placement, Wanted, WantsVgpu
from gpuops.plan.vm.power import MoveMode

_FEW: Final = 5


def hosts_for(
    vm: Vm, named: str | None, move: MoveMode | None, inventory: Inventory, *, whole: bool = False
) -> tuple[Host, ...]:
    """The hosts to look at: the named one, or the VM's own, and with a move every other that has GPUs, or with `whole`
    gives VMs any device.

    Raises HostNotFound.
    """
    if named is not None:
        return (inventory.find_host(named),)
    own = inventory.host_of(vm)
    stay = (own,) if own else ()
    return (*stay, *others_with_gpus(vm, inventory, whole=whole)) if move else stay


def move_blockers(
    vm: Vm, hosts: tuple[Host, ...], move: MoveMode | None, inventory: Inventory
) -> tuple[Rejection, ...]:
    """Why the VM cannot be had on these hosts without being moved."""
    own = inventory.host_of(vm)
    if own is None and not move:
        return (_unseen(vm),)
    if own is None or move or own in hosts:
        return ()
    hint = "--move cold moves it there while it is off"
    return (Rejection(vm.name, f"is registered on {own.name}, not on {hosts[0].name}", hint=hint),)


def unread(vm: Vm, hosts: tuple[Host, ...], inventory: Inventory) -> tuple[Rejection, ...]:
    """Why nobody can say what the VM's own host, or one of these, offers; empty = all of them tell."""
    own = () if inventory.host_of(vm) else (_unseen(vm),)
    untold = (host for host in hosts if host.profiles is None and not host.readable)
    return (
        *own,
        *(unreachable(host) or Rejection(host.name, "the vGPU profiles it offers cannot be read") for host in untold),
    )


def _unseen(vm: Vm) -> Rejection:
    hint = "this login needs the read-only role on that host"
    return Rejection(vm.name, "the host it is registered on cannot be read", hint=hint)


def able_elsewhere(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Rejection | None:
    """The hosts that could take the VM where its own cannot: what to do instead."""
    own = inventory.host_of(wanted.vm)
    whole = any(not isinstance(demand, WantsVgpu) for demand in wanted.demands)
    others = others_with_gpus(wanted.vm, inventory, whole=whole)
    able = [host.name for host in others if _takes(host, wanted, inventory, catalog)]
    offering = [host.name for host in others if _offers(host, wanted) and host.name not in able]
    if own is None:
        return None
    if not (able or offering):
        return _nowhere(own, wanted)
    if able:
        return able_instead(wanted.vm, able, own)
    hint = f"{_some(offering)} {'offer' if len(offering) > 1 else 'offers'} it too, without room for it now"
    return Rejection(wanted.vm.name, f"is registered on {own.name}, which cannot take it", hint=hint)


def able_instead(vm: Vm, names: Sequence[str], own: Host) -> Rejection:
    """These hosts could take the VM where its own cannot."""
    hint = f"{_some(names)} can take it: --move cold moves it there while it is off"
    return Rejection(vm.name, f"is registered on {own.name}, which cannot take it", hint=hint)


def _nowhere(own: Host, wanted: Wanted) -> Rejection | None:
    """A move would not help either, where the VM's own host does not offer what no other one does."""
    if not own.readable or _offers(own, wanted) or not _profiles(wanted):
        return None
    hint = "gpuops inventory --hosts shows the profiles each host offers"
    return Rejection(wanted.vm.name, f"no other host offers {', '.join(_profiles(wanted))} either", hint=hint)


def _some(names: Sequence[str]) -> str:
    """The first few names: a fleet has hundreds of hosts, and one is enough to go on."""
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")


def others_with_gpus(vm: Vm, inventory: Inventory, *, whole: bool = False) -> tuple[Host, ...]:
    """Every host but the VM's own that has GPUs, or with `whole` gives VMs any device, by name."""
    hosts = device_hosts(inventory) if whole else gpu_hosts(inventory)
    return tuple(sorted((host for host in hosts if host.ref != vm.host), key=lambda host: host.name))


def _takes(host: Host, wanted: Wanted, inventory: Inventory, catalog: Catalog) -> bool:
    return isinstance(place(replace(wanted, hosts=(host.ref,)), inventory, catalog), Placement)


def _offers(host: Host, wanted: Wanted) -> bool:
    profiles = _profiles(wanted)
    return bool(profiles) and all(host.offers(profile) for profile in profiles)


def _profiles(wanted: Wanted) -> tuple[str, ...]:
    return tuple(dict.fromkeys(demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu)))
