"""What must hold of every story with pools, told by the guests that were made up, the books and the simulator's ledger.

PA what ran in the evening runs when desktops are due, or the last return names it; no ML VM runs then.
PB no more of a GPU is lent, or used, than there is, and no client has two leases of a pool.
PC every lease has an end, in its book and by itself in its guests; what a night gives ends before its return begins.
PD nobody can use what is over, and no environment of it stays in a client but one that was off, or silent.
PE who was let in keeps that until its end, or for the grace after a night asked for its server; but for what its client
   gives back, what somebody does to a server, and a return that ends what a night gives.
PF in the morning every server lends again, or the last call for its pool names it, or a lease that it waits for; and
   none lends that is off.
PG no VM is stopped but those that nights may take, and ML VMs; no server while somebody uses it.
PH no step is done, or tried, twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from gpuops.model.lent_by_night import ByNight
from gpuops.model.workloads.lease_book import LeaseState, ServerState
from gpuops.sim.state.vm_state import Power
from tests.nights.pools.guests import Share
from tests.nights.pools.played import Look, PoolStory
from tests.nights.pools.site import CLOSES, FIRST, GIVEN, GRACE, KEPT, NIGHT, TAKEN, WHOLE_MIB
from tests.nights.world.session import USER

SOON = timedelta(seconds=15)
"""What the scripts of one lease take."""
LONGEST = timedelta(hours=6)
STOPS = ("SuspendVM_Task", "ShutdownGuest", "PowerOffVM_Task")


def violations(story: PoolStory) -> list[str]:
    return [
        *_are_back(story), *_not_too_much(story), *_have_ends(story), *_nobody_uses_what_is_over(story),
        *_keep_what_is_lent(story), *_lend_again(story), *_nothing_else_is_taken(story), *_no_step_twice(story),
    ]  # fmt: skip


def _hit(story: PoolStory, name: str, until: datetime) -> bool:
    """Whether somebody did something to that VM by then that nobody has mended since."""
    mended = max((at for at, each in story.mended if each == name and at <= until), default=FIRST)
    return any(each == name and mended < at <= until for at, each in story.hit)


def _are_back(story: PoolStory) -> Iterator[str]:
    for morning in story.mornings:
        for name, power in morning.power.items():
            ran = story.evenings[morning.evening][name] is Power.ON
            hit = any(each == name and morning.evening < at <= morning.after.at for at, each in story.hit)
            if name.startswith((NIGHT, GIVEN)):
                if power is not Power.OFF:
                    yield f"PA: {name} is {power} in the morning of {morning.evening:%d}"
            elif ran and power is not Power.ON and not hit and name not in morning.named:
                yield f"PA: {name} is {power} in the morning of {morning.evening:%d}, and is not named"


def _not_too_much(story: PoolStory) -> Iterator[str]:
    yield from (f"PB: {each}" for each in story.guests.too_much)
    for at, book in story.books:
        used = Counter[tuple[str, int]]()
        clients = Counter[str]()
        for lease in book.leases:
            if lease.state in (LeaseState.LENT, LeaseState.ENDING) or lease.enabled is not False:
                for share in lease.shares:
                    used[share.server, share.gpu] += share.memory_mib
            clients[lease.wish.client] += lease.state is LeaseState.LENT
        for (server, gpu), mib in used.items():
            if mib > WHOLE_MIB:
                yield f"PB: {at:%d %H:%M}: {mib} MiB of GPU {gpu} of {server} are lent"
        yield from (f"PB: {at:%d %H:%M}: {name} has {many} leases" for name, many in clients.items() if many > 1)


def _have_ends(story: PoolStory) -> Iterator[str]:
    for at, book in story.books:
        for lease in book.leases:
            if lease.state not in (LeaseState.LENT, LeaseState.ENDING):
                continue
            if lease.ends_at is None or lease.begins_at is None or lease.ends_at - lease.begins_at > LONGEST:
                yield f"PC: {at:%d %H:%M}: {lease.id} of {lease.client} has no end, or one that is too late"
            elif any(each.server.startswith(GIVEN) for each in lease.shares) and lease.ends_at > _must_end(at):
                yield f"PC: {at:%d %H:%M}: {lease.id} of {lease.client} lasts into the return"
    for share in story.guests.shares:
        ends = _ends(story, share)
        if ends is None or share.until > ends + SOON:
            yield f"PC: {share.lease} may use {share.server} until {share.until:%d %H:%M}, and ends at {ends}"


def _must_end(at: datetime) -> datetime:
    """When a lease of a server that the night of this moment gives ends at the latest."""
    return at.replace(hour=CLOSES, minute=0, second=0, microsecond=0) - GRACE


def _ends(story: PoolStory, share: Share) -> datetime | None:
    """The end that its lease had when it was admitted, by the book."""
    seen = [lease.ends_at for at, book in story.books if at <= share.admitted
            for lease in book.leases if lease.id == share.lease]  # fmt: skip
    return seen[-1] if seen else None


def _nobody_uses_what_is_over(story: PoolStory) -> Iterator[str]:
    looks: list[Look] = [*(each.after for each in story.mornings), story.last]
    for look in looks:
        for server, lease in look.shares:
            if lease not in look.lent:
                yield f"PD: {look.at:%d %H:%M}: {lease} is over, and its client can use {server}"
        for client, lease in look.lets:
            # what a call tells of an environment that may stay is lost where that call is killed
            silent = (client, lease) in story.guests.not_left or _hit(story, client, look.at)
            if lease not in look.lent and not silent:
                yield f"PD: {look.at:%d %H:%M}: {client} has the environment of {lease}, which is over"
    yield from (f"PD: {lease} holds something, and is over" for lease in sorted(story.left))


def _keep_what_is_lent(story: PoolStory) -> Iterator[str]:
    for share in story.guests.shares:
        if share.ended is None or share.lost or share.ended >= share.until - SOON:
            continue
        since, ended = share.admitted, share.ended
        client = _client(story, share.lease)
        servers = {each.server for each in story.guests.shares if each.lease == share.lease}
        returned = any(each == client and at <= ended for at, each in story.returned)
        hit = any(_hit(story, each, ended) for each in servers)
        asked = [_drained(story, each, ended) for each in servers if each.startswith(TAKEN)]
        drained = any(each is not None and ended >= each + GRACE - SOON for each in asked)
        gives = any(each.startswith(GIVEN) for each in servers)
        if not (returned or hit or drained or (gives and any(since <= at <= ended for at in story.returns))):
            left = int((share.until - ended).total_seconds() // 60)
            yield f"PE: {client} lost {share.lease} of {share.server} at {ended:%d %H:%M}, {left} min too early"


def _client(story: PoolStory, lease: str) -> str:
    return next((each.client for _, book in story.books for each in book.leases if each.id == lease), "")


def _drained(story: PoolStory, server: str, until: datetime) -> datetime | None:
    """When a night asked for that server the last time before this moment, by the books."""
    asked: datetime | None = None
    was: ServerState | None = None
    for at, book in story.books:
        found = next((each for each in book.servers if each.name == server), None)
        if at > until or found is None:
            continue
        night = found.night is not None and found.night.by_night is ByNight.TAKE_BACK
        if found.state is ServerState.DRAINING and was is not ServerState.DRAINING and night:
            asked = at
        was = found.state
    return asked


def _lend_again(story: PoolStory) -> Iterator[str]:
    for morning in story.mornings:
        look = morning.after
        for name in sorted(story.site.servers):
            if look.power[name] is not Power.ON:
                if name in look.lending:
                    yield f"PF: {name} is {look.power[name]} in the morning of {morning.evening:%d}, and is to lend"
            elif not _hit(story, name, look.at) and name not in look.serving & look.lending:
                # a lease that only its client's guest can end, which is off or silent
                waits_for = [lease for server, lease in look.held if server == name and lease not in look.lent]
                if name not in morning.told and not any(each in morning.told for each in waits_for):
                    yield f"PF: {name} does not lend in the morning of {morning.evening:%d}, and is not named"


def _nothing_else_is_taken(story: PoolStory) -> Iterator[str]:
    for entry in story.world.ledger:
        if entry.method not in STOPS or not entry.operation_id.startswith("gpuops-"):
            continue
        # one that no policy lends is a desktop like others once it does not lend
        unlent = entry.name.startswith(KEPT) and _hit(story, entry.name, entry.at)
        if entry.name not in story.site.takeable and not (entry.name.startswith((NIGHT, GIVEN)) or unlent):
            yield f"PG: {entry.name} was stopped by {entry.method} at {entry.at:%d %H:%M}"
    for share in story.guests.shares:
        until = min(share.until, share.ended or share.until)
        later = (each for each in story.world.ledger if each.name == share.server and each.at > share.admitted)
        stop = next((each for each in later if each.after.get("power") not in (None, Power.ON)), None)
        hit = any(name == share.server and share.admitted <= at <= until for at, name in story.hit)
        if share.server.startswith(TAKEN) and stop is not None and stop.at < until and not hit:
            yield f"PG: {share.server} was stopped at {stop.at:%d %H:%M} while {share.lease} used it"


def _no_step_twice(story: PoolStory) -> Iterator[str]:
    last: dict[str, str] = {}
    tasks = [(each.queued_at, each.entity.name, each.name, each.call.user) for each in story.world.tasks.history()]
    shut = [(each.at, each.name, each.method, each.user) for each in story.world.ledger if each.method == STOPS[1]]
    hits = [(at, name, "hit", "") for at, name in story.hit]
    for at, name, method, user in sorted(tasks + shut + hits):
        if method not in (*STOPS, "PowerOnVM_Task", "hit"):
            continue
        if last.get(name) == method and user == USER:
            yield f"PH: {name} was sent {method} once more at {at:%d %H:%M}"
        last[name] = method
