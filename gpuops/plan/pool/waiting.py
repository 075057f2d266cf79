"""Who of those that wait begins when: first come, first served, and nobody begins later because of who came after.

Each that waits has its shares kept from an expected moment on. That moment is made of the ends of leases, which all
have one. Whoever comes later gets what is left beside all of that: now, where it ends in time or fits beside it.
(Conservative backfilling: Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.)

    one GPU of 40 GiB, 30 lent until 14:00        a, who asked first for 20 GiB for 2 h: 14:00 to 16:00
    b asks for 10 GiB for 3 h: now, 30 + 10 and then 20 + 10 fit
    c asks for 15 GiB for 1 h: 15:00, when b has ended (20 + 10 + 15 are more than 40)

When something becomes free earlier, each in turn looks for an earlier moment with its own kept shares set free for it:
what was kept is there still, so its moment only ever comes nearer, unless a server leaves or a lease ends late.
Then each in turn gets the earliest moment beside those before it: nobody is passed because a call was late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState, ServerGpu, ServerState
from gpuops.plan.pool.placing import chosen_shares
from gpuops.plan.pool.room import NEVER, PoolRoom, lends_until


@dataclass(slots=True)
class _Freed:
    """What may be free that was not when everybody was last looked at."""

    all: bool = False
    gpus: set[tuple[str, int]] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)
    """Whose quota has room that it had not."""

    @staticmethod
    def since(was: LeaseBook | None, book: LeaseBook) -> _Freed:
        """Compared with a book in which nobody could come nearer; None = there is none to compare with."""
        if was is None or was.pool != book.pool or _gpus(was) != _gpus(book):
            return _Freed(all=True)
        freed, now_is = _Freed(), {each.id: each for each in book.leases}
        for lease in was.leases:
            if lease != now_is.get(lease.id):
                freed.add(lease)
        return freed

    def add(self, lease: GpuLease) -> None:
        """What this lease has, or has kept for it, may be free."""
        if lease.shares:
            self.gpus.update((each.server, each.gpu) for each in lease.shares)
            self.owners.add(lease.wish.owner)

    def helps(self, lease: GpuLease, room: PoolRoom, now: datetime) -> bool:
        """Whether the lease may begin earlier by it: no other moment than one of these can have become possible."""
        if not (self.all or self.gpus):
            return False
        if self.all or (lease.wish.owner in self.owners and room.quota_counts(lease)):
            return True
        if any((each.server, each.gpu) in self.gpus for each in lease.shares):
            return True  # what is kept for it is taken there, and is set free for it alone
        return room.may_begin_on(self.gpus, lease, _earliest(lease, now), lease.begins_at or NEVER)


def _gpus(book: LeaseBook) -> list[tuple[str, ServerState, tuple[ServerGpu, ...], datetime | None]]:
    return [(each.name, each.state, each.gpus, lends_until(each)) for each in book.servers]


def with_beginnings(book: LeaseBook, now: datetime, was: LeaseBook | None = None) -> LeaseBook:
    """The same where each that was asked for, or waits, is lent from now on, or waits until an expected moment.

    One for which there is no room at any moment, with the servers that lend now, waits without one. `was`: what a call
    of this function came to, of which `book` is made; then who has nothing to gain from what is another is not looked
    at. The answer is the same without it.
    """
    waiting = [each for each in book.leases if each.state in (LeaseState.ASKED, LeaseState.WAITING)]
    known = {each.id for each in was.leases} if was is not None else set()
    freed = _Freed.since(was, book)
    room, moments = _all_kept(book, waiting, now) or _kept_in_turn(book, waiting, now)
    for lease in waiting:
        if moments[lease.id] is not lease:
            freed.add(lease)
    # what comes nearer may make room for somebody who was looked at before: once more, until nothing comes nearer
    looked, again = False, True
    while again:
        behind, again = _Freed(), False
        for lease in waiting:
            before = moments[lease.id]
            is_new = not looked and lease.id not in known
            if not (is_new or freed.helps(before, room, now) or behind.helps(before, room, now)):
                continue
            nearer = _nearer(before, room, now)
            if nearer is not None:
                behind.add(before)
                moments[lease.id], again = nearer, True
        freed, looked = behind, True
    return book.with_leases(_from(moments[each.id], now) for each in waiting)


def _earliest(lease: GpuLease, now: datetime) -> datetime:
    return max(now, lease.not_before or now)


def _all_kept(
    book: LeaseBook, waiting: Sequence[GpuLease], now: datetime
) -> tuple[PoolRoom, dict[str, GpuLease]] | None:
    """The room that is left, where everybody's shares may stay kept as they are; None = somebody's may not."""
    room = PoolRoom(book, now)
    for lease in waiting:
        if lease.begins_at is None:
            continue
        if lease.begins_at < now or lease.ends_at is None or not lease.shares or not room.serves(lease.shares):
            return None
        room.take(lease, lease.shares, lease.begins_at, lease.ends_at)
    return (room, {each.id: each for each in waiting}) if room.is_enough else None


def _kept_in_turn(book: LeaseBook, waiting: Sequence[GpuLease], now: datetime) -> tuple[PoolRoom, dict[str, GpuLease]]:
    room = PoolRoom(book, now)
    return room, {each.id: _kept(each, room, now) for each in waiting}


def _kept(lease: GpuLease, room: PoolRoom, now: datetime) -> GpuLease:
    """The lease with what is kept for it, which is taken; where that is not there any more with the moment that is the
    earliest then, before anybody who came later keeps anything: one that waits is not passed because a call was late.

    Without a moment where it had none.
    """
    begin, end = lease.begins_at, lease.ends_at
    if begin is None or end is None or not lease.shares:
        return lease if begin is None else replace(lease, begins_at=None)
    if begin >= now and room.fits(lease.shares, begin, end) and room.within_quota(lease, begin, end):
        room.take(lease, lease.shares, begin, end)
        return lease
    lost = replace(lease, begins_at=None)
    return _nearer(lost, room, now) or lost


def _nearer(lease: GpuLease, room: PoolRoom, now: datetime) -> GpuLease | None:
    """The lease from the earliest moment on at which there are shares for all of its time, which are taken in place of
    what was kept; None = there is no earlier one than it has."""
    kept = lease.begins_at
    if kept is not None and lease.ends_at is not None:
        room.release(lease, lease.shares, kept, lease.ends_at)
    begin = room.first_moment(lease, _earliest(lease, now), kept or NEVER)
    if begin is not None:
        end = begin + lease.lasts
        shares = chosen_shares(lease.wish, room, begin, end)
        assert shares is not None, "enough GPUs have room from the first moment on"
        room.take(lease, shares, begin, end)
        return replace(lease, begins_at=begin, ends_at=end, shares=shares)
    if kept is not None and lease.ends_at is not None:
        room.take(lease, lease.shares, kept, lease.ends_at)
    return None


def _from(lease: GpuLease, now: datetime) -> GpuLease:
    if lease.state is LeaseState.WAITING and lease.begins_at is not None and lease.begins_at > now:
        return lease
    if lease.begins_at is None:
        return replace(lease, state=LeaseState.WAITING, ends_at=None, shares=())
    return replace(lease, state=LeaseState.LENT if lease.begins_at == now else LeaseState.WAITING)
