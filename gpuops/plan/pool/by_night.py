"""What nights do with the servers of pools, as a policy says: which they take back, which lend while they last.

Take-back: a night looks at the servers of the pool as if they lent nothing. Those that it then takes are drained first,
the others lend on. Each lends again once its VM runs, carries no marker and the night is over.
Give: a server that a night has started from its queue lends until so long before the return must begin as the policy's
grace says. No lease reaches beyond that moment (`room.py`), so no return has one to wait for.
Pure: `execute/pool/by_night.py` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.model.lent_by_night import ByNight, LentByNight, ServerNight
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.lease_book import LeaseBook, PoolServer, ServerState
from gpuops.plan.core.steps import ShutDownGuest, Step, SuspendVm
from gpuops.plan.pool.lending import serve_again, take_back, told
from gpuops.plan.pool.members import lends
from gpuops.plan.pool.room import lends_until
from gpuops.plan.rotation.ml_queue.ml_vms import NO_WINDOW


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A VM that a night has started from its queue under a policy that gives such servers to their pool."""

    uuid: str
    """Its instance UUID."""
    night: ServerNight


@dataclass(frozen=True, slots=True)
class NightsNow:
    """What nights that are not over have to do with pools, as the journal tells."""

    started: tuple[StartedServer, ...] = ()
    over: Collection[str] = ()
    """Ids of nights whose return has begun."""


NO_NIGHTS: Final = NightsNow()


@dataclass(frozen=True, slots=True)
class LendsAgain:
    """A server that is to lend now. `night` = the one that has it lend; None = it lends by day."""

    server: str
    night: ServerNight | None


def taken_back(policy: Policy) -> Mapping[str, LentByNight]:
    """By pool, what the policy says of those that its nights take servers back from."""
    return {each.pool: each for each in policy.lending if each.by_night is ByNight.TAKE_BACK}


def as_if_drained(policy: Policy, inventory: Inventory) -> Inventory:
    """The snapshot as it will be when the servers that the nights of this policy may take back lend nothing: their
    clients, who use CPU by them too, are gone."""
    rules = taken_back(policy)
    for vm in inventory.vms.values() if rules else ():
        if vm.attributes.get(POOL_MARK) in rules:
            attributes = {name: value for name, value in vm.attributes.items() if name != POOL_MARK}
            inventory = inventory.with_vm(replace(vm, attributes=attributes, cpu_usage_mhz=0))
    return inventory


def to_drain(policy: Policy, steps: Iterable[Step], inventory: Inventory) -> Mapping[str, tuple[Vm, ...]]:
    """By pool, the VMs that lend for it and that these steps of a night take. `inventory`: as it is, with marks."""
    rules, found = taken_back(policy), dict[str, tuple[Vm, ...]]()
    for step in steps:
        if isinstance(step, SuspendVm | ShutDownGuest) and (vm := inventory.vms.get(step.vm)) is not None:
            pool = vm.attributes.get(POOL_MARK, "")
            if pool in rules:
                found[pool] = (*found.get(pool, ()), vm)
    return found


def drain_notes(policy: Policy, steps: Iterable[Step], inventory: Inventory) -> Iterator[str]:
    """What a look at a night says of the servers that it would drain first."""
    for pool, vms in to_drain(policy, steps, inventory).items():
        grace = told(taken_back(policy)[pool].grace)
        for vm in vms:
            yield f"{vm.name} lends its GPUs for pool {pool}: it is drained first, and its clients have {grace}"


def night_drains(book: LeaseBook, servers: Collection[str], policy: Policy, night: str, now: datetime) -> LeaseBook:
    """The book after these servers (instance UUIDs) were asked to lend nothing more for this night."""
    rule, open_night = taken_back(policy)[book.pool.name], policy.night_at(now)
    until = open_night.closes if open_night is not None else now + NO_WINDOW
    use = ServerNight(night, ByNight.TAKE_BACK, until, policy.marker)
    for server in book.servers:
        of_night = server.state is ServerState.DRAINING and server.night is not None  # else somebody drains it
        if server.uuid in servers and (server.state is ServerState.SERVING or of_night):
            book = take_back(book, server.name, rule.grace, now, use)
    return book


def return_takes_back(book: LeaseBook, now: datetime) -> LeaseBook:
    """The book after every server that a night has lend was asked to lend nothing more, at once: the return stops it,
    and waits for no lease."""
    for server in book.servers:
        night = server.night
        given = night is not None and night.by_night is ByNight.GIVE
        if given and server.state is not ServerState.DEAD:
            book = take_back(book, server.name, timedelta(), now, night)
    return book


def lends_by_night(book: LeaseBook) -> bool:
    """Whether somebody may have a share of a server that a night has lend, or be lent one."""
    return any(lends_until(server) is not None and lends(server, book) for server in book.servers)


def bounded(book: LeaseBook, nights: NightsNow) -> LeaseBook:
    """The book in which no server that a night has started lends longer than that night, whoever had it lend: one that
    came into the pool by night too, or was given to it again."""
    started = {each.uuid: each.night for each in nights.started}
    for server in book.servers:
        if server.state is ServerState.SERVING and server.night is None and server.uuid in started:
            book = book.with_server(replace(server, night=started[server.uuid]))
    return book


def lend_now(book: LeaseBook, nights: NightsNow, inventory: Inventory, now: datetime) -> Sequence[LendsAgain]:
    """The servers that are to lend from now on: by day again, or for the night that has started them."""
    return tuple(_lend_now(book, nights, inventory, now))


def _lend_now(book: LeaseBook, nights: NightsNow, inventory: Inventory, now: datetime) -> Iterator[LendsAgain]:
    started = {each.uuid: each.night for each in nights.started}
    for server in book.servers:
        vm = next(iter(inventory.vms_with_uuid(server.uuid)), None)
        if server.state is ServerState.SERVING or vm is None or vm.power is not PowerState.ON:
            continue
        if _is_back(server, vm, nights, now):
            yield LendsAgain(server.name, None)
            continue
        night = started.get(server.uuid)
        # once a night: one that dies in it, or that somebody drains, is left alone
        given_before = server.night is not None and server.night.night == night.night if night is not None else False
        if night is not None and server.state is ServerState.DEAD and not given_before and now < night.until:
            yield LendsAgain(server.name, night)


def _is_back(server: PoolServer, vm: Vm, nights: NightsNow, now: datetime) -> bool:
    """Whether the night that had it drained is over, and its VM as it was before."""
    night = server.night
    if night is None or night.by_night is not ByNight.TAKE_BACK or vm.attributes.get(night.marker):
        return False
    # without a window a night is named by the minute in which it begins, which is after that of the draining
    return now >= night.until or any(over >= night.night for over in nights.over)


def lending_again(book: LeaseBook, again: Iterable[LendsAgain], now: datetime) -> LeaseBook:
    """The book after these servers were given to the pool, whose program runs."""
    for each in again:
        server = book.server(each.server)
        if server is not None and each.night is None:
            book = book.with_server(replace(server, night=None))
        book = serve_again(book, each.server, now, each.night, started=True)
    return book


def last_end(book: LeaseBook, servers: Collection[str]) -> datetime | None:
    """When the last lease of these servers (instance UUIDs) is over; None = nobody has anything of them."""
    names = {each.name for each in book.servers if each.uuid in servers}
    held = (each for each in book.leases if each.holds and any(share.server in names for share in each.shares))
    return max((each.ends_at for each in held if each.ends_at is not None), default=None)


def not_there(policy: Policy, pools: Collection[str]) -> Iterator[str]:
    """What a night says of the pools that its policy names in `lending` and that are none of these."""
    for pool in dict.fromkeys(each.pool for each in policy.lending):
        if pool not in pools:
            why = f"lending: there is no pool {pool}: its servers are VMs like others to this night"
            yield f"{why} (gpuops pool create makes it, or leave it out of `lending`)"


def standing(book: LeaseBook) -> Iterator[str]:
    """What nights have to do with the servers of this pool now."""
    for server in book.servers:
        night = server.night
        if night is None:
            continue
        until, where = f"{night.until:%Y-%m-%d %H:%MZ}", f"pool {book.pool.name}: {server.name}"
        if night.by_night is ByNight.GIVE and server.state is ServerState.SERVING:
            yield f"{where} lends by night {night.night}, until {until}"
        elif night.by_night is ByNight.TAKE_BACK and server.state is not ServerState.SERVING:
            held = [each for each in book.leases if each.holds and server.name in {one.server for one in each.shares}]
            leases = f", {len(held)} of its leases to end" if held else ""
            yield f"{where} is taken back for night {night.night}{leases}; after it, from {until}, it lends again"
