"""Members of a pool: checks which VMs can be servers or clients, takes servers back, and updates the book.

The book is updated with the power states of vCenter and with the results of the servers' health hooks.

The health hooks run before the book is changed, while other commands may lend and return. So a lease is lost only if it
was set up before the hooks ran (`old_book`), and still is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from gpuops.errors import UsageError, VmNotFound
from gpuops.extras.lending import lending
from gpuops.extras.lending.lease_book import (
    REPORTED_DEAD,
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    PoolFile,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, PowerState, VgpuDevice, Vm, is_gpu
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection


def servers_of(
    file: PoolFile, inventory: Inventory, catalog: Catalog
) -> tuple[tuple[PoolServer, ...], tuple[Rejection, ...]]:
    """Return the servers that the file names, and every reason why a VM cannot be one.

    Raises VmNotFound, VmAmbiguous.
    """
    keep_mib = file.keep or 0
    servers, rejections = list[PoolServer](), list[Rejection]()
    for vm in map(inventory.find_vm, file.servers):
        sizes = [_whole_mib(device, catalog) for device in _gpus(vm)]
        if vm.devices is None or vm.instance_uuid is None:
            rejections.append(_unreadable(vm))
        elif not sizes:
            hint = f"{command('attach', vm=called(vm))} gives it a GPU (gpuops help attach)"
            rejections.append(Rejection(vm.name, "has no GPU to lend", hint=hint))
        gpus = tuple(ServerGpu(index, (size_mib or 0) - keep_mib) for index, size_mib in enumerate(sizes))
        servers.append(PoolServer(vm.name, vm.instance_uuid or "", gpus))
        if None in sizes:
            rule = "has a part of a GPU, or a GPU of unknown memory: only whole GPUs are lent"
            hint = "attach whole GPUs by DirectPath I/O (gpuops help attach)"
            rejections.append(Rejection(vm.name, rule, hint=hint))
        elif gpus and (least_left_mib := min(gpu.memory_mib for gpu in gpus)) <= 0:
            # the numbers: `keep`, and the memory of the smallest GPU
            rule = "`keep` leaves no memory of a GPU to lend"
            hint = "in the file of the pool, set `keep` to less than the memory of its smallest GPU"
            rejections.append(Rejection(vm.name, rule, keep_mib, keep_mib + least_left_mib, "MiB", hint=hint))
    return tuple(servers), tuple(rejections)


def _unreadable(vm: Vm) -> Rejection:
    return Rejection(
        vm.name, "its devices or its instance UUID cannot be read", hint="check this login with gpuops login test"
    )


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
            pci_ids = device.allowed if isinstance(device, DynamicDevice) else ((device.vendor_id, device.device_id),)
            boards = [catalog.board_by_pci(*pci_id) for pci_id in pci_ids]
            known_mib = [board.framebuffer_mib for board in boards if board is not None]
            # the smallest of several models: which one the VM gets is known only while it runs
            return min(known_mib, default=None) if len(known_mib) == len(boards) else None
        case _:
            return None


def complete_wish(wish: LeaseWish, book: LeaseBook, inventory: Inventory) -> tuple[LeaseWish, tuple[Rejection, ...]]:
    """Return the wish with the name, UUID and owner of its client, and every reason to refuse it.

    In `wish` the client is the text that the admin typed. Raises VmNotFound, VmAmbiguous.
    """
    vm = inventory.find_vm(wish.client)
    wish = replace(wish, client=vm.name, client_uuid=vm.instance_uuid or "", owner=book.pool.owner_by.of(vm))
    return wish, tuple(_reasons_against_client(vm, book))


def _reasons_against_client(vm: Vm, book: LeaseBook) -> Iterator[Rejection]:
    """Yield every reason why the VM cannot be a client of the pool."""
    if vm.devices is None or vm.instance_uuid is None:
        yield _unreadable(vm)
    elif any(server.uuid == vm.instance_uuid for server in book.servers):
        yield Rejection(vm.name, f"is a server of pool {book.pool.name}", hint="choose a VM without a GPU")
    elif _gpus(vm):
        yield Rejection(
            vm.name, "has a GPU of its own", hint="choose a VM without a GPU, or remove its GPU with gpuops detach"
        )
    if vm.template:
        yield Rejection(vm.name, "is a template", hint="choose a VM that is not a template")


def client_uuid(text: str, book: LeaseBook, inventory: Inventory) -> str:
    """Return the instance UUID of a client: of the VM with this name, or else of the lease with this name or `uuid:`.

    Raises VmNotFound, VmAmbiguous.
    """
    try:
        return inventory.find_vm(text).instance_uuid or ""
    except VmNotFound:
        for lease in book.open_leases:
            if text in (f"uuid:{lease.wish.client_uuid}", lease.wish.client):
                return lease.wish.client_uuid
        raise


def with_dead_servers(book: LeaseBook, inventory: Inventory, now: datetime) -> LeaseBook:
    """Return the book in which servers that are powered off or suspended are dead, so that their leases end.

    A VM that is not in the inventory may be deleted or hidden from this login: its leases continue, and `unseen` warns.
    """
    for server in book.servers:
        vm = vm_with(server.uuid, inventory)
        if vm is not None and vm.power in (PowerState.OFF, PowerState.SUSPENDED):
            book = lending.server_died(book, server, now)
    return book


def is_lending(server: PoolServer, book: LeaseBook) -> bool:
    """Return whether a client may have a share of the server now, or can get one."""
    return server.state is ServerState.SERVING or any(lease.has_shares_of(server.name) for lease in book.open_leases)


def servers_of_other_pools(
    before: LeaseBook | None, after: LeaseBook, other_pools: Iterable[LeaseBook]
) -> Iterator[Rejection]:
    """Yield a refusal for each server that comes into this pool while another pool has it."""
    old_uuids = {server.uuid for server in before.servers} if before is not None else set()
    pools = {server.uuid: other.pool.name for other in other_pools for server in other.servers}
    for server in after.servers:
        if server.uuid in pools and server.uuid not in old_uuids:
            hint = f"remove it from the file of pool {pools[server.uuid]}, and run gpuops pool create -f FILE with it"
            yield Rejection(server.name, f"is already a server of pool {pools[server.uuid]}", hint=hint)


def unseen(book: LeaseBook, inventory: Inventory) -> Iterator[str]:
    """Yield a warning for each server and each client that is deleted, or that this login may not see."""
    why = "is not in vCenter, or this login may not read it. If it was deleted, run:"
    for server in book.servers:
        if not server.is_reported_dead and vm_with(server.uuid, inventory) is None:
            yield f"{server.name} {why} {command(f'pool reclaim {book.pool.name}', server=server.name)} --dead"
    for lease in book.leases:
        if lease.state is LeaseState.LENT and vm_with(lease.wish.client_uuid, inventory) is None:
            yield f"{lease.wish.client} {why} {command(f'pool return {book.pool.name}', client=lease.wish.client)}"


def vm_with(uuid: str, inventory: Inventory) -> Vm | None:
    """Return the VM with this instance UUID, or None."""
    return next(iter(inventory.vms_with_uuid(uuid)), None)


def choose_pool(name: str | None, books: Mapping[str, LeaseBook]) -> LeaseBook:
    """Return the pool of that name; without a name the only pool. Raises UsageError."""
    names = ", ".join(books)
    if not books:
        hint = "gpuops pool create --file templates/pool.yaml makes one"
        raise UsageError("there is no pool in this vCenter", hint=hint)
    if name is not None and name not in books:
        raise UsageError(f"there is no pool {name!r}", hint=f"the pools of this vCenter: {names}")
    if name is None and len(books) > 1:
        raise UsageError("there are several pools in this vCenter", hint=f"add the name of one: {names}")
    return next(book for pool, book in books.items() if name in (None, pool))


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A request to take back a server, or without a server to do what is due by the clock and the servers' health."""

    server: str | None = None
    """Its name in the pool, or the present name of its VM."""
    grace: timedelta | None = None
    """How long clients keep their leases; None = the `grace` of the pool."""
    dead: bool = False
    """The server is dead: its leases end at once."""
    again: bool = False
    """The server lends again."""

    def pool_server(self, book: LeaseBook, inventory: Inventory) -> PoolServer | None:
        """Return the server of the request, or None if the pool has no such server. Raises VmAmbiguous."""
        text = self.server or ""
        if (server := book.server(text)) is None:
            with suppress(VmNotFound):
                uuid = inventory.find_vm(text).instance_uuid
                server = next((server for server in book.servers if server.uuid == uuid), None)
        return server

    def decide(self, book: LeaseBook, inventory: Inventory, now: datetime) -> lending.Decision:
        """Return the book after this request, or unchanged with the reason against it. Raises VmAmbiguous."""
        if self.server is None:
            return lending.settle(book, now), ()
        server = self.pool_server(book, inventory)
        if server is None:
            hint = f"servers of this pool: {', '.join(server.name for server in book.servers)}"
            return book, (Rejection(self.server, f"is not a server of pool {book.pool.name}", hint=hint),)
        if self.dead:
            return lending.server_died(book, server, now, REPORTED_DEAD), ()
        if not self.again:
            grace = book.pool.grace if self.grace is None else self.grace
            return lending.take_back(book, server, now + grace, now), ()
        vm = vm_with(server.uuid, inventory)
        if vm is None or vm.power is not PowerState.ON:
            rule = (
                "its VM is not in this vCenter"
                if vm is None
                else f"its VM does not run (power state {vm.power or 'unknown'})"
            )
            hint = (
                "remove it from the file of the pool, and run gpuops pool create -f FILE"
                if vm is None
                else "power it on first"
            )
            return book, (Rejection(server.name, rule, hint=hint),)
        return lending.serve_again(book, server, now), ()


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The answer of a server's health hook."""

    server: str
    used_mib: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The MiB that each share that it serves uses, by lease and GPU."""
    why: str = ""
    """The reason why it does not serve, or why that is unknown; empty = it serves."""
    is_dead: bool = False
    """Whether the hook failed. If it could not be run, this is False, and `why` has the reason."""


def after_health(old_book: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth], now: datetime) -> LeaseBook:
    """Return the book in which the leases end that are on dead servers, or that a server no longer serves.

    `old_book`: the book before the health hooks ran.
    """
    set_up = {lease.id for lease in old_book.leases if _is_set_up(lease)}
    for health in healths:
        if health.is_dead and (server := book.server(health.server)) is not None:
            book = lending.server_died(book, server, now, f"cannot serve: {health.why}")
        elif not health.why:
            because = f"server {health.server} no longer serves it"
            book = lending.end_leases(book, because, partial(_is_lost, health, set_up), now, now)
    return book


def _is_lost(health: ServerHealth, set_up: Container[str], lease: GpuLease) -> bool:
    """Return whether the client of this lease was set up, and the server does not serve a share of it."""
    served = ((lease.id, share.gpu) in health.used_mib for share in lease.shares if share.server == health.server)
    return lease.id in set_up and _is_set_up(lease) and not all(served)


def _is_set_up(lease: GpuLease) -> bool:
    return lease.state is LeaseState.LENT and lease.enabled is True


def health_warnings(old_book: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth]) -> Iterator[str]:
    """Yield a warning for each server of unknown health, and for each lease that uses a GPU more than it may.

    Leases are those of both books: `old_book` before and `book` after the command.
    """
    leases = {lease.id: lease for lease in (*book.open_leases, *old_book.open_leases)}
    shares = ((lease.id, share) for lease in leases.values() for share in lease.shares)
    sizes_mib = {(id, share.server, share.gpu): share.memory_mib for id, share in shares}
    for health in healths:
        if health.why and not health.is_dead:
            yield f"{health.server}: its health is unknown: {health.why}"
        for (id, gpu), used_mib in health.used_mib.items():
            lent_mib = sizes_mib.get((id, health.server, gpu), 0)
            uses = f"lease {id} uses {used_mib} MiB of GPU {gpu} of {health.server}"
            if not lent_mib:
                stop = f"stop it in the guest of {health.server}"
                yield f"{uses}, but no share is lent to it there: if no other pool lends it, {stop}"
            elif used_mib > lent_mib:
                ends = command(f"pool return {book.pool.name}", client=leases[id].wish.client)
                yield f"{uses}, but only {lent_mib} MiB are lent to it: {ends} ends the lease"
