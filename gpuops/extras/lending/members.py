"""Checks the VMs that are to be servers or clients of a pool, and updates its book with what vCenter shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from gpuops.errors import UsageError, VmNotFound
from gpuops.extras.lending.lease_book import (
    LeaseBook,
    LeaseState,
    LeaseWish,
    PoolFileWish,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.extras.lending.lending import server_died
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, PowerState, VgpuDevice, Vm, is_gpu
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection


def servers_of(
    wish: PoolFileWish, inventory: Inventory, catalog: Catalog
) -> tuple[tuple[PoolServer, ...], tuple[Rejection, ...]]:
    """Return the servers that the file names, and every reason why a VM cannot be one. Raises VmNotFound,
    VmAmbiguous."""
    servers, rejections = list[PoolServer](), list[Rejection]()
    for vm in map(inventory.find_vm, wish.servers):
        rejections += _no_server(vm, wish, catalog)
        sizes = [_whole_mib(device, catalog) or 0 for device in _gpus(vm)]
        gpus = tuple(ServerGpu(index, size_mib - wish.keep_mib) for index, size_mib in enumerate(sizes))
        servers.append(PoolServer(vm.name, vm.instance_uuid or "", gpus))
    return tuple(servers), tuple(rejections)


def _no_server(vm: Vm, wish: PoolFileWish, catalog: Catalog) -> Iterator[Rejection]:
    if vm.devices is None or vm.instance_uuid is None:
        yield _unread(vm)
    elif not _gpus(vm):
        hint = f"{command('attach', vm=called(vm))} gives it a GPU: gpuops help attach"
        yield Rejection(vm.name, "has no GPU to lend", hint=hint)
    for device in _gpus(vm):
        size_mib = _whole_mib(device, catalog)
        if size_mib is None:
            rule = "has a GPU that is not a whole one, or whose memory is unknown: only whole GPUs are lent"
            yield Rejection(vm.name, rule, hint="gpuops help attach: DirectPath I/O gives whole GPUs")
        elif size_mib <= wish.keep_mib:
            yield Rejection(vm.name, "`keep` leaves nothing of a GPU's memory", wish.keep_mib, size_mib, "MiB")


def _unread(vm: Vm) -> Rejection:
    return Rejection(vm.name, "its devices or its instance UUID cannot be read", hint="gpuops login test")


def _gpus(vm: Vm) -> list[GpuDevice]:
    return [device for device in vm.devices or () if is_gpu(device)]


def _whole_mib(device: GpuDevice, catalog: Catalog) -> int | None:
    """Return the memory of a GPU that the VM has alone; None = it shares the GPU, or the memory is unknown."""
    match device:
        case VgpuDevice(profile=name):
            profile, board = catalog.profile(name), catalog.board_of(name)
            is_whole = profile is not None and board is not None and profile.framebuffer_mib == board.framebuffer_mib
            return profile.framebuffer_mib if profile is not None and is_whole else None
        case DirectPathDevice() | DynamicDevice():
            kinds = device.allowed if isinstance(device, DynamicDevice) else ((device.vendor_id, device.device_id),)
            boards = [catalog.board_by_pci(*kind) for kind in kinds]
            known = [board.framebuffer_mib for board in boards if board is not None]
            # the smallest of several kinds: which one the VM has is known only while it runs
            return min(known, default=None) if len(known) == len(boards) else None
        case _:
            return None


def wish_of(wish: LeaseWish, book: LeaseBook, inventory: Inventory) -> tuple[LeaseWish, tuple[Rejection, ...]]:
    """Return the wish, whose client is as it was typed, with the name, UUID and owner of that VM, and every reason to
    refuse it. Raises VmNotFound, VmAmbiguous."""
    vm = inventory.find_vm(wish.client)
    wish = replace(wish, client=vm.name, client_uuid=vm.instance_uuid or "", owner=book.pool.owner_by.of(vm))
    return wish, tuple(_no_client(vm, book))


def _no_client(vm: Vm, book: LeaseBook) -> Iterator[Rejection]:
    if vm.devices is None or vm.instance_uuid is None:
        yield _unread(vm)
    elif any(server.uuid == vm.instance_uuid for server in book.servers):
        yield Rejection(vm.name, f"is a server of pool {book.pool.name}", hint="name a VM without a GPU")
    elif _gpus(vm):
        yield Rejection(vm.name, "has a GPU of its own", hint="name a VM without a GPU, or gpuops detach takes it away")
    if vm.template:
        yield Rejection(vm.name, "is a template", hint="name a VM")


def client_uuid(text: str, book: LeaseBook, inventory: Inventory) -> str:
    """Return the instance UUID of a client: by a name that a VM has now, otherwise by `uuid:` or by the name in its
    lease. Raises VmNotFound, VmAmbiguous."""
    try:
        return inventory.find_vm(text).instance_uuid or ""
    except VmNotFound:
        for lease in book.leases:
            if lease.holds and text in (f"uuid:{lease.wish.client_uuid}", lease.client):
                return lease.wish.client_uuid
        raise


def as_the_fleet_is(book: LeaseBook, inventory: Inventory, now: datetime) -> LeaseBook:
    """Return the book in which servers that are off or suspended have died.

    A VM that is not seen may be gone or hidden from this login: its leases go on, and `unseen` names it.
    """
    for server in book.servers:
        vm = vm_with(server.uuid, inventory)
        if vm is not None and vm.power in (PowerState.OFF, PowerState.SUSPENDED):
            book = server_died(book, server.name, now)
    return book


def lends(server: PoolServer, book: LeaseBook) -> bool:
    """Whether a client may have a share of it now, or be lent one."""
    holds = any(lease.holds and lease.has_shares_of(server.name) for lease in book.leases)
    return server.state is ServerState.SERVING or holds


def in_another_pool(before: LeaseBook | None, after: LeaseBook, others: Iterable[LeaseBook]) -> Iterator[Rejection]:
    """Yield a refusal for each server that comes into this pool, or begins to lend, while another pool has it."""
    states = {server.uuid: server.state for server in before.servers} if before is not None else {}
    pools = {server.uuid: other.pool.name for other in others for server in other.servers}
    for server in after.servers:
        begins = server.state is ServerState.SERVING and states.get(server.uuid) is not ServerState.SERVING
        if server.uuid in pools and (begins or server.uuid not in states):
            hint = f"remove it from the file of pool {pools[server.uuid]}, then gpuops pool create"
            yield Rejection(server.name, f"is already a server of pool {pools[server.uuid]}", hint=hint)


def unseen(book: LeaseBook, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for each server and each client that is gone, or that this login may not see."""
    why = "is not seen: it is gone, or this login may not read it. If it is gone:"
    for server in book.servers:
        if not server.is_reported_dead and vm_with(server.uuid, inventory) is None:
            yield f"{server.name} {why} {command(f'pool reclaim {book.pool.name}', server=server.name)} --dead"
    for lease in book.leases:
        if lease.state is LeaseState.LENT and vm_with(lease.wish.client_uuid, inventory) is None:
            yield f"{lease.client} {why} {command(f'pool return {book.pool.name}', client=lease.client)}"


def vm_with(uuid: str, inventory: Inventory) -> Vm | None:
    """Return the VM with this instance UUID; None = it is not seen."""
    return next(iter(inventory.vms_with_uuid(uuid)), None)


def pool_meant(name: str | None, names: Sequence[str]) -> str:
    """Return the pool of that name; without a name the only pool. Raises UsageError."""
    if name is not None and name in names:
        return name
    if not names:
        hint = "gpuops pool create --file templates/pool.yaml makes one"
        raise UsageError("there is no pool in this vCenter", hint=hint)
    if name is not None:
        raise UsageError(f"there is no pool {name!r}", hint=f"pools there: {', '.join(names)}")
    if len(names) > 1:
        raise UsageError("there are several pools", hint=f"name one of {', '.join(names)}")
    return names[0]
