"""Checks the VMs that are to be servers or clients of a pool, and updates its book with what vCenter shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuops.errors import UsageError, VmNotFound
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, PowerState, VgpuDevice, Vm, is_gpu
from gpuops.model.workloads.lease_book import (
    LeaseBook,
    LeaseState,
    LeaseWish,
    PoolFileWish,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.lending import server_died


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A request as it is typed."""

    client: str
    memory_mib: int
    lasts: timedelta
    gpus: int = 1


def servers_of(
    wish: PoolFileWish, inventory: Inventory, catalog: Catalog
) -> tuple[tuple[PoolServer, ...], tuple[Rejection, ...]]:
    """Return the servers that the file names, and every reason why a VM cannot be one. Raises VmNotFound,
    VmAmbiguous."""
    servers, rejections, names = [], [], set[str]()
    for text in wish.servers:
        vm = inventory.find_vm(text)
        refused = list(_no_server(vm, wish, inventory, catalog))
        if vm.name in names:
            refused.append(Rejection(vm.name, "is named twice, or has the name of another server", hint="name it once"))
        names.add(vm.name)
        rejections += refused
        if not refused:
            sizes = [_whole_mib(device, inventory, catalog) or 0 for device in _gpus(vm)]
            gpus = tuple(ServerGpu(index, size_mib - wish.keep_mib) for index, size_mib in enumerate(sizes))
            servers.append(PoolServer(vm.name, vm.instance_uuid or "", gpus, *_where(vm, inventory)))
    return tuple(servers), tuple(rejections)


def _no_server(vm: Vm, wish: PoolFileWish, inventory: Inventory, catalog: Catalog) -> Iterator[Rejection]:
    if vm.devices is None or vm.instance_uuid is None:
        yield _unread(vm)
    elif not _gpus(vm):
        hint = f"{command('attach', vm=called(vm))} gives it a GPU: gpuops help attach"
        yield Rejection(vm.name, "has no GPU to lend", hint=hint)
    for device in _gpus(vm):
        size_mib = _whole_mib(device, inventory, catalog)
        if size_mib is None:
            rule = "has a GPU that is not a whole one, or whose memory is unknown: only whole GPUs are lent"
            yield Rejection(vm.name, rule, hint="gpuops help attach: DirectPath I/O gives whole GPUs")
        elif size_mib <= wish.keep_mib:
            yield Rejection(vm.name, "`keep` leaves nothing of a GPU's memory", wish.keep_mib, size_mib, "MiB")


def _unread(vm: Vm) -> Rejection:
    return Rejection(vm.name, "its devices or its instance UUID cannot be read", hint="gpuops login test")


def _gpus(vm: Vm) -> list[GpuDevice]:
    return [device for device in vm.devices or () if is_gpu(device)]


def _whole_mib(device: GpuDevice, inventory: Inventory, catalog: Catalog) -> int | None:
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


def wish_of(
    request: ShareRequest, book: LeaseBook, inventory: Inventory
) -> tuple[LeaseWish | None, tuple[Rejection, ...]]:
    """Return the request with what vCenter knows of its client, or every reason to refuse it. Raises VmNotFound,
    VmAmbiguous."""
    vm = inventory.find_vm(request.client)
    if rejections := tuple(_no_client(vm, book)):
        return None, rejections
    owner, where, uuid = book.pool.owner_by.of(vm), _where(vm, inventory), vm.instance_uuid or ""
    return LeaseWish(vm.name, uuid, request.memory_mib, request.lasts, request.gpus, owner, *where), ()


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


def server_called(text: str, book: LeaseBook, inventory: Inventory) -> str:
    """Return the name in its pool of the server: the text may be that, or what the VM is called now. Raises
    VmAmbiguous."""
    if book.server(text) is not None:
        return text
    try:
        uuid = inventory.find_vm(text).instance_uuid
    except VmNotFound:
        uuid = text.removeprefix("uuid:")
    return next((server.name for server in book.servers if server.uuid == uuid), text)


def as_the_fleet_is(book: LeaseBook, inventory: Inventory, now: datetime) -> LeaseBook:
    """Return the book with what vCenter shows: where servers run, and which are off or suspended.

    A VM that is not seen may be gone or hidden from this login: its leases go on, and `unseen` names it.
    """
    for server in book.servers:
        vm = _vm(server.uuid, inventory)
        if vm is not None:
            host, cluster = _where(vm, inventory)
            book = book.with_server(replace(server, host=host, cluster=cluster))
            if vm.power in (PowerState.OFF, PowerState.SUSPENDED):
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
            yield Rejection(server.name, f"is a server of pool {pools[server.uuid]}", hint=hint)


def unseen(book: LeaseBook, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for each server and each client that is gone, or that this login may not see."""
    why = "is not seen: it is gone, or this login may not read it. If it is gone:"
    for server in book.servers:
        if not server.is_reported_dead and _vm(server.uuid, inventory) is None:
            yield f"{server.name} {why} {command('pool reclaim', pool=book.pool.name, server=server.name)} --dead"
    for lease in book.leases:
        if lease.state is LeaseState.LENT and _vm(lease.wish.client_uuid, inventory) is None:
            yield f"{lease.client} {why} {command('pool return', pool=book.pool.name, client=lease.client)}"


def is_back(server: PoolServer, inventory: Inventory) -> Rejection | None:
    """Return the reason why this server cannot lend again; None = it can."""
    vm = _vm(server.uuid, inventory)
    if vm is None:
        return Rejection(server.name, "its VM is not in this vCenter", hint="gpuops inventory --vms shows all VMs")
    if vm.power is not PowerState.ON:
        return Rejection(server.name, f"its VM does not run ({vm.power or 'unknown'})", hint="power it on first")
    return None


def _vm(uuid: str, inventory: Inventory) -> Vm | None:
    return next(iter(inventory.vms_with_uuid(uuid)), None)


def _where(vm: Vm, inventory: Inventory) -> tuple[str, str]:
    """Return the names of its host and of the cluster; empty = unknown, or none."""
    host, cluster = inventory.host_of(vm), inventory.cluster_of(vm)
    return host.name if host is not None else "", cluster.name if cluster is not None else ""


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
        raise UsageError("there are several pools", hint=f"--pool NAME, of {', '.join(names)}")
    return names[0]
