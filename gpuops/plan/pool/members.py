"""Which VMs a pool's servers and clients are, and what of the fleet a book has to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuops.advise.lending_servers import POOL_MARK
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
from gpuops.model.workloads.remote_gpu import RemoteProgram
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.lending import leaving, server_died
from gpuops.plan.rotation.power_moments import runs_anew


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What is asked for, as it is typed."""

    client: str
    memory_mib: int
    lasts: timedelta
    gpus: int = 1
    within: timedelta | None = None
    """It is refused where it would begin later than that; None = it waits."""


def servers_of(
    wish: PoolFileWish, inventory: Inventory, catalog: Catalog
) -> tuple[tuple[PoolServer, ...], tuple[Rejection, ...]]:
    """The servers that the file names, and every reason why one of them cannot be one. Raises VmNotFound,
    VmAmbiguous."""
    servers, rejections, seen = [], [], list[Vm]()
    for text in wish.servers:
        vm = inventory.find_vm(text)
        refused = list(_no_server(vm, wish, inventory, catalog))
        twin = next((each for each in seen if each.ref == vm.ref or each.name == vm.name), None)
        if twin is not None:
            same = twin.ref == vm.ref
            rule = f"is named twice, as {text!r} too" if same else "another VM of that name is a server of the pool too"
            refused.append(Rejection(vm.name, rule, hint="name it once" if same else "rename one: names tell servers"))
        seen.append(vm)
        rejections += refused
        if not refused:
            sizes = [_whole_mib(device, vm, inventory, catalog) or 0 for device in _gpus(vm)]
            gpus = tuple(ServerGpu(index, size - wish.keep_mib) for index, size in enumerate(sizes))
            servers.append(_placed(PoolServer(vm.name, vm.instance_uuid or "", gpus), vm, inventory))
    return tuple(servers), tuple(rejections)


def _no_server(vm: Vm, wish: PoolFileWish, inventory: Inventory, catalog: Catalog) -> Iterator[Rejection]:
    if vm.devices is None:
        yield Rejection(vm.name, "its devices cannot be read, so its GPUs are not known", hint="gpuops login test")
        return
    if vm.instance_uuid is None:
        yield Rejection(
            vm.name, "its instance UUID cannot be read: it would not be found again", hint="gpuops login test"
        )
    if not _gpus(vm):
        hint = f"{command('attach', vm=called(vm))} gives it a GPU: gpuops help attach"
        yield Rejection(vm.name, "has no GPU to lend", hint=hint)
    for device in _gpus(vm):
        size_mib = _whole_mib(device, vm, inventory, catalog)
        if size_mib is None:
            rule = "has a GPU that is not a whole one, or whose memory is not known: only whole GPUs are lent"
            yield Rejection(vm.name, rule, hint="gpuops help attach: DirectPath I/O gives whole GPUs")
        elif size_mib <= wish.keep_mib:
            yield Rejection(vm.name, "`keep` leaves nothing of a GPU's memory", wish.keep_mib, size_mib, "MiB")


def _gpus(vm: Vm) -> list[GpuDevice]:
    return [device for device in vm.devices or () if is_gpu(device)]


def _whole_mib(device: GpuDevice, vm: Vm, inventory: Inventory, catalog: Catalog) -> int | None:
    """The memory of a GPU that the VM has alone; None = it does not, or that is not known."""
    match device:
        case VgpuDevice(profile=name):
            profile = catalog.profile(name)
            board = catalog.board_of(name)
            whole = profile is not None and board is not None and profile.framebuffer_mib == board.framebuffer_mib
            return profile.framebuffer_mib if profile is not None and whole else None
        case DirectPathDevice() | DynamicDevice():
            kinds = device.allowed if isinstance(device, DynamicDevice) else ((device.vendor_id, device.device_id),)
            boards = [catalog.board_by_pci(*kind) for kind in kinds]
            # of several kinds the smallest: which one it has is known only while it runs
            return min((board.framebuffer_mib for board in boards if board is not None), default=None)
        case _:
            return None


def wish_of(
    request: ShareRequest, book: LeaseBook, inventory: Inventory, program: RemoteProgram | None
) -> tuple[LeaseWish | None, tuple[Rejection, ...]]:
    """The wish, or every reason why this VM cannot be a client, or the pool's program not lend it so many GPUs. Raises
    VmNotFound, VmAmbiguous."""
    vm = inventory.find_vm(request.client)
    rejections = tuple(_no_client(vm, book))
    if program is not None and (reason := program.too_many(request.gpus)):
        rejections += (Rejection(vm.name, reason, hint="ask for fewer GPUs, or change `program` in the pool's file"),)
    if rejections:
        return None, rejections
    host, cluster = _where(vm, inventory)
    wish = LeaseWish(
        vm.name,
        vm.instance_uuid or "",
        request.memory_mib,
        request.lasts,
        request.gpus,
        book.pool.owner_by.of(vm),
        host,
        cluster,
    )
    return wish, ()


def client_uuid(text: str, book: LeaseBook, inventory: Inventory) -> str:
    """Instance UUID of the client that is meant: by what VMs are called now, and of one that is gone, or has another
    name, by the name that its lease has. Raises VmNotFound, VmAmbiguous, and UsageError for a name that means another
    VM now, which has no lease, or that several clients had."""
    uuids = {each.wish.client_uuid for each in book.leases if each.open}
    had_name = {each.wish.client_uuid: each.id for each in book.leases if each.open and each.client == text}
    try:
        now_is = inventory.find_vm(text).instance_uuid or ""
    except VmNotFound:
        if text.removeprefix("uuid:") in uuids:
            return text.removeprefix("uuid:")
        if len(had_name) == 1:
            return next(iter(had_name))
        if not had_name:
            raise
        message = f"{len(had_name)} clients were named {text!r} when they were lent something"
        raise UsageError(message, hint=f"gpuops pool reclaim --lease ID, of {', '.join(had_name.values())}") from None
    if now_is in uuids or not had_name:
        return now_is
    uuid, lease = next(iter(had_name.items()))
    message = f"{text!r} has no lease: {lease} is of a VM that had that name, and has not now"
    raise UsageError(message, hint=command("pool return", pool=book.pool.name, client=f"uuid:{uuid}"))


def server_called(text: str, book: LeaseBook, inventory: Inventory) -> str:
    """The name in its pool of the server that is meant, by that or by what VMs are called now; the text where there is
    none. Raises VmAmbiguous."""
    if book.server(text) is not None:
        return text
    try:
        uuid = inventory.find_vm(text).instance_uuid
    except VmNotFound:
        uuid = text.removeprefix("uuid:")
    return next((each.name for each in book.servers if each.uuid == uuid), text)


def _no_client(vm: Vm, book: LeaseBook) -> Iterator[Rejection]:
    if vm.instance_uuid is None:
        yield Rejection(
            vm.name, "its instance UUID cannot be read: it would not be found again", hint="gpuops login test"
        )
    if any(each.uuid == vm.instance_uuid for each in book.servers):
        yield Rejection(vm.name, f"is a server of pool {book.pool.name}", hint="name a VM without a GPU")
    elif vm.devices is None:
        yield Rejection(
            vm.name, "its devices cannot be read: whether it has a GPU is not known", hint="gpuops login test"
        )
    elif _gpus(vm):
        yield Rejection(vm.name, "has a GPU of its own", hint="name a VM without a GPU, or gpuops detach takes it away")
    if vm.template:
        yield Rejection(vm.name, "is a template", hint="name a VM")


def as_the_fleet_is(book: LeaseBook, inventory: Inventory, now: datetime) -> LeaseBook:
    """The book with what vCenter shows: where servers run, and those that died: off, suspended, or started anew since
    the last look while they lent. Starts are compared with each other, of one clock, and with no lease.

    A VM that is not seen is gone or hidden from this login, which look the same: of it nothing is concluded, and
    `unseen` tells of it.
    """
    for server in book.servers:
        vm = _vm(server.uuid, inventory)
        if vm is None or server.state is ServerState.LEAVING:
            continue
        if server.state is ServerState.DEAD:
            book = book.with_server(_placed(server, vm, inventory))
        elif vm.power in (PowerState.OFF, PowerState.SUSPENDED):
            book = server_died(book, server.name, now)
        elif runs_anew(server.started_at, vm) and lends_something(book, server.name):
            book = server_died(book.with_server(_placed(server, vm, inventory)), server.name, now, restarted(vm))
        else:
            book = book.with_server(_placed(server, vm, inventory))
    return book


def lends(server: PoolServer, book: LeaseBook) -> bool:
    """Whether somebody may have a share of it now, or be lent one."""
    draining = server.state is ServerState.DRAINING
    return server.state is ServerState.SERVING or (draining and lends_something(book, server.name))


def lends_elsewhere(before: LeaseBook | None, after: LeaseBook, others: Iterable[LeaseBook]) -> Iterator[Rejection]:
    """A refusal for each server that begins to lend while another pool of the vCenter lends its GPUs."""
    served = {each.uuid for each in before.servers if lends(each, before)} if before is not None else set()
    begins = {each.uuid: each for each in after.servers if lends(each, after) and each.uuid not in served}
    for other in others:
        for server in other.servers:
            if server.uuid in begins and lends(server, other):
                rule = f"pool {other.pool.name} lends its GPUs"
                drain = command("pool reclaim", pool=other.pool.name, server=server.name)
                yield Rejection(begins[server.uuid].name, rule, hint=f"{drain} drains it there")


def lends_something(book: LeaseBook, server: str) -> bool:
    """Whether a client may have something of it now."""
    return any(each.holds and any(share.server == server for share in each.shares) for each in book.leases)


def restarted(vm: Vm) -> str:
    """What is said of a server whose VM was started anew while it lent: nothing of its sessions is left."""
    at = f" at {vm.started_at:%Y-%m-%d %H:%MZ}" if vm.started_at is not None else ""
    return f"was started anew{at}, and its sessions are lost"


def unseen(book: LeaseBook, inventory: Inventory) -> Iterator[str]:
    """A warning for each server and each client that is gone, or that this login may not see."""
    pool = book.pool.name
    why = "is not seen: it is gone, or this login may not read it. If it is gone:"
    for server in book.servers:
        seen = server.state in (ServerState.DEAD, ServerState.LEAVING) or _vm(server.uuid, inventory) is not None
        if not seen:
            yield f"{server.name} {why} {command('pool reclaim', pool=pool, server=server.name)} --dead"
    for lease in book.leases:
        if lease.state in (LeaseState.WAITING, LeaseState.LENT) and _vm(lease.wish.client_uuid, inventory) is None:
            yield f"{lease.client} {why} {command('pool return', pool=pool, client=lease.client)}"


def left_behind(book: LeaseBook, inventory: Inventory) -> Iterator[str]:
    """A warning for each server that leaves the pool, and that nobody can see to: it leaves all the same."""
    for server in leaving(book):
        vm = _vm(server.uuid, inventory)
        if vm is None:
            stop = " and stop the program in its guest" if book.pool.program is not None else ""
            why = f"{server.name} leaves the pool, and is not seen: it is gone, or this login may not read it"
            yield f"{why}. If it is there: clear its custom attribute {POOL_MARK}{stop}"
        elif book.pool.program is not None and vm.power not in (PowerState.ON, PowerState.OFF):
            power = vm.power or "power unknown"
            yield f"{server.name} leaves the pool, and does not run ({power}): its program is not stopped"


def is_back(server: PoolServer, inventory: Inventory) -> Rejection | None:
    """What speaks against this server lending again; None = nothing."""
    vm = _vm(server.uuid, inventory)
    if vm is None:
        return Rejection(
            server.name, "its VM is not in this vCenter", hint="gpuops inventory --vms shows those that are"
        )
    if server.state is ServerState.DEAD and vm.power is not PowerState.ON:
        return Rejection(server.name, f"its VM does not run ({vm.power or 'unknown'})", hint="power it on first")
    return None


def _vm(uuid: str, inventory: Inventory) -> Vm | None:
    return next(iter(inventory.vms_with_uuid(uuid)), None)


def _where(vm: Vm, inventory: Inventory) -> tuple[str, str]:
    """Names of its host and of the cluster; empty = not known, or none."""
    host, cluster = inventory.host_of(vm), inventory.cluster_of(vm)
    return host.name if host is not None else "", cluster.name if cluster is not None else ""


def _placed(server: PoolServer, vm: Vm, inventory: Inventory) -> PoolServer:
    host, cluster = _where(vm, inventory)
    # a start that cannot be read now is not forgotten
    return replace(server, host=host, cluster=cluster, started_at=vm.started_at or server.started_at)


def pool_meant(name: str | None, names: Sequence[str]) -> str:
    """The pool of that name; without one the only pool there is. Raises UsageError."""
    if name is not None and name in names:
        return name
    if not names:
        raise UsageError(
            "there is no pool in this vCenter", hint="gpuops pool create --file templates/pool.yaml makes one"
        )
    there = ", ".join(names)
    if name is not None:
        raise UsageError(f"there is no pool {name!r}", hint=f"pools there: {there}")
    if len(names) > 1:
        raise UsageError("which pool is not said", hint=f"--pool NAME, of {there}")
    return names[0]
