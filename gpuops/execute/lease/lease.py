"""The lease on the lock VM: taken before a run acts, renewed while it goes on, given back at its end.

The state decides, not the reply: whoever wrote reads back, and holds the lease only when its own words are there.
It is judged by vCenter's time of the latest look and by this machine's monotonic clock, whichever is stricter.
The local deadline counts from before vCenter's clock was read, so that it never lies after the expiry that others see.

vCenter checks no lease: the one change that was past its check when the lease changed hands may still take effect.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from gpuops.errors import GpuopsError, LeaseReverted, Locked, Refused
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.lease.nonces import Nonces
from gpuops.execute.site import Site
from gpuops.model.nights.night_record import parse_marker
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import command
from gpuops.plan.rotation import lease as rules
from gpuops.plan.rotation.lease import Numbered

TRIES: Final = 3
WAIT: Final = "wait for it to end; gpuops rotate status shows it"


class NotWritten(Locked):
    """Nobody holds the lease, and it could not be written. `failed`: vCenter's reason; None = it was overtaken."""

    def __init__(self, message: str, *, hint: str, failed: GpuopsError | None) -> None:
        super().__init__(message, hint=hint)
        self.failed = failed


class HeldLease:
    """A lease that was taken. `lost` says why it is no more.

    Each look at the lock VM that shows it there vouches for one change: the next one needs a look of its own, for the
    clocks of a machine that was paused do not tell how much time has passed.

    `returning`: a lease that cannot be renewed keeps no desktop away as long as nobody else has taken it; `without`
    says why the run went on.
    """

    def __init__(
        self,
        vm: LockVm,
        lease: rules.Lease,
        deadline_s: float,
        passed_s: Callable[[], float],
        *,
        marker: str = "",
        returning: bool = False,
    ) -> None:
        """`marker`: the custom attribute that holds the markers of the policy."""
        self._vm = vm
        self._lease = lease
        self._deadline_s = deadline_s
        self._passed_s = passed_s
        self._marker = marker
        self._returning = returning
        self._again_s = -math.inf
        """Before then a lease that could not be renewed is looked at, not written."""
        self._told: tuple[datetime, float] = vm.seen.taken_at, deadline_s - rules.TTL_S
        """vCenter's time at the latest look, and when that was asked for."""
        self.vouched = False
        """Whether a look has shown it ours since the last change was sent."""
        self.lost: str | None = None
        self.without = ""
        self.reverted = ""
        """Why the number of the lock VM was set anew, when it was."""

    @property
    def number(self) -> int:
        return self._lease.epoch

    @property
    def lock_vm(self) -> str:
        """The managed object id of the lock VM."""
        return self._vm.ref

    def objection(self) -> str | None:
        """Why nothing more may be started; None = it is ours for longer than a call may take, by vCenter's clock and by
        our own, or we return and it is nobody's. Looks at the lock VM unless a look vouches for it; renews it when due.
        """
        if self.lost is None and not self.vouched:
            self._look()
        self.keep()
        if self.lost is None and not self._returning and not (self.vouched and rules.may_act(self._left_s)):
            return f"the lease on the lock VM could not be renewed: {self._vm.why}"
        return self.lost

    def sends(self) -> None:
        """A change is sent: what vouched for it vouches for no other."""
        self.vouched = False

    def saw(self, inventory: Inventory, vms: Collection[str], asked_s: float) -> None:
        """Takes in what a look at these VMs showed: vCenter's time, the lease, and markers of later leases."""
        self._told = inventory.taken_at, asked_s
        if self._vm.ref in vms:
            self._read(partial(self._vm.read, inventory))
        marked = (
            parse_marker(inventory.vms[ref].attributes.get(self._marker, "")) for ref in vms if ref in inventory.vms
        )
        later = max((each.lease for each in marked if each is not None and each.lease is not None), default=0)
        if later > self.number and not self._returning and self.lost is None:
            self.lost = f"the lease was passed on: a marker names lease number {later}, ours is {self.number}"

    def keep(self) -> None:
        """Renews it when a heartbeat has passed."""
        if self.lost is not None or not rules.must_renew(self._left_s):
            return
        resting = self._passed_s() < self._again_s
        for _ in range(1 if resting else TRIES):
            self._renew(look_only=resting)
            if self.lost is not None or not rules.must_renew(self._left_s):
                return
        if self._returning and not resting:
            self.without = f"the lease on the lock VM could not be renewed: {self._vm.why}"
            self._again_s = self._passed_s() + rules.HEARTBEAT_S

    def give_back(self) -> None:
        """Free for others at once; one that cannot be given back runs out."""
        there = self._vm.look()
        if rules.same_holder(there, self._lease):
            self._vm.write(rules.release_lease(self._lease, self._vm.seen.taken_at))

    def _look(self) -> bool:
        """Whether the lease could be read."""
        asked_s = self._passed_s()
        readable = self._read(self._vm.look)
        self._told = self._vm.seen.taken_at, asked_s
        return readable

    def _read(self, read: Callable[[], rules.Lease | None]) -> bool:
        """Judges the lease in a look; False = it cannot be read."""
        self.vouched = False
        try:
            there = read()
        except Refused as unusable:
            self._vm.why = unusable.message
            if self._vm.is_gone and not self._returning:  # whoever makes another one may take a lease on that
                self.lost = unusable.message
            return False
        if rules.same_holder(there, self._lease):
            self.vouched = True
        elif self._returning and self._is_free(there):
            self._deadline_s = -math.inf  # it was reverted, and nobody else has it: it is written once more
        elif self.lost is None:
            self.lost = f"the lease on the lock VM is not ours any more: {self._who(there)}"
        return True

    def _is_free(self, there: rules.Lease | None) -> bool:
        """Whether the lock VM was reverted, and nobody has taken the lease since."""
        older = rules.number_of(there) < self.number
        return older and rules.holder_of(there, self._vm.seen.taken_at, ()) is None

    def _who(self, there: rules.Lease | None) -> str:
        if there is None or there.epoch < self.number:
            return f"the VM was reverted to a snapshot: lease number {rules.number_of(there)}, ours is {self.number}"
        return rules.lease_holder_text(there) if there.nonce else "somebody gave it back"

    def _renew(self, *, look_only: bool) -> None:
        recent = self.vouched and self._passed_s() - self._told[1] < rules.HEARTBEAT_S
        if not recent and not self._look():
            return
        if self.lost is not None or look_only:
            return
        now, asked_s = self._told
        wanted = rules.renew_lease(self._lease, now)
        self.vouched = False  # the write looks anew, and what it finds is not judged here
        try:
            self.vouched = self._vm.write(wanted)
        except Refused as unusable:
            self._vm.why = unusable.message
        if self.vouched:
            self._lease, self._deadline_s = wanted, asked_s + rules.TTL_S
            self._told = self._vm.seen.taken_at, self._passed_s()

    @property
    def _left_s(self) -> float:
        """How long it is still ours: by vCenter's clock or by our own, whichever says less."""
        told, asked_s = self._told
        left = self._lease.expires - told
        return min(self._deadline_s - self._passed_s(), left.total_seconds() - (self._passed_s() - asked_s))


def take(
    site: Site,
    name: str,
    nonces: Nonces,
    *,
    policies: Sequence[Policy] = (),
    journal: Journal | None = None,
    returning: bool = False,
    ref: str | None = None,
    seen: Inventory | None = None,
) -> HeldLease:
    """The lease on the VM of this name (`ref`: its managed object id, where names are not enough; `seen`: a look
    just before), ours, with a number above all that were seen. Raises Locked, naming who holds it, and
    Refused where the lock VM cannot be used.

    A lock VM with a lower number than one that was seen is LeaseReverted to a night; a return writes a higher one.
    A lease that nobody holds and that cannot be written, because a task hangs on the lock VM perhaps, is NotWritten to
    a night and of no use to a return.

    Only under the lock of this machine: a lease that a run of this state directory left behind is then known dead.
    """
    seen = seen or site.vcenter.inventory()
    if any(policy.needs_tags for policy in policies) and not returning:
        seen = site.vcenter.with_tags(seen)
    vm, nonce, nonces = LockVm(site.vcenter, name, seen, ref=ref), secrets.token_hex(8), nonces.on(name)
    if vm.managed is not None and not returning:
        raise Refused(f"lock_vm: {name} {vm.managed}", hint="name a VM of yours, or let gpuops rotate init make one")
    # All of them until the lease is ours: what a killed run has sent last may take effect between two tries.
    dead = nonces.read() | {nonce}
    for number in range(TRIES + 1):
        began = site.passed_s()
        there = vm.look()
        holder = rules.holder_of(there, vm.seen.taken_at, dead)
        if holder is not None:
            raise Locked(rules.lease_holder_text(holder), hint=WAIT)
        if number == TRIES:
            break
        highest = highest_number(name, policies, journal, vm.seen)
        wrong = rules.reverted_lock_vm(name, there, highest)
        if wrong is not None and not returning:
            raise LeaseReverted(wrong, hint=when_reverted(highest))
        nonces.keep(dead)
        wanted = rules.next_lease(there, owner(), nonce, vm.seen.taken_at, highest)
        if vm.write(wanted):
            nonces.keep({nonce})
            marker = policies[0].marker if policies else ""
            held = HeldLease(vm, wanted, began + rules.TTL_S, site.passed_s, marker=marker, returning=returning)
            held.reverted = wrong or ""
            return held
    why = f"the lease on {name} could not be written in {TRIES} tries: {vm.why}"
    hint = (vm.failed.hint if vm.failed is not None else "") or "try again"
    raise Refused(why, hint=hint) if returning else NotWritten(why, hint=hint, failed=vm.failed)


def when_reverted(highest: Numbered) -> str:
    """What to do about a lock VM that was reverted."""
    again = command("rotate unlock", id=str(highest.number))
    return f"when no gpuops rotates on any machine: {again} --policy FILE; gpuops rotate day brings back in any case"


def lease_on(site: Site, name: str, seen: Inventory, highest: Numbered) -> tuple[rules.Lease | None, str]:
    """The lease that a VM of this name carries, and what is wrong with it."""
    try:
        vm = LockVm(site.vcenter, name, seen)
        found = vm.look()
    except Refused as unusable:
        return None, unusable.message
    return (found if found is not None and found.nonce else None), rules.reverted_lock_vm(name, found, highest) or ""


@dataclass(frozen=True, slots=True)
class RunLease:
    """What a run has of the lease: `held`, or nothing and why."""

    held: HeldLease | None = None
    unusable: str = ""
    lock_vm: str = ""
    """Name of the VM that it is on."""

    @property
    def numbered(self) -> tuple[str, int] | None:
        """Name of the lock VM and number of the lease, for the journal; None = it is not held."""
        return (self.lock_vm, self.held.number) if self.held is not None else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of a return that went on without it, or that set the number of the lock VM anew."""
        why = self.unusable or (self.held.without if self.held is not None else "")
        alone = (f"{why}: this machine's lock alone keeps other runs away",) if why else ()
        anew = self.held.reverted if self.held is not None else ""
        return (*alone, f"{anew}; its number is right again") if anew else alone

    def must_be_ours(self) -> None:
        """Raises Locked when it was lost on the way: what was in flight is finished, the rest was not begun."""
        if self.held is not None and self.held.lost is not None:
            raise Locked(f"{self.held.lost}: nothing more was started", hint="gpuops rotate status shows who rotates")


@contextmanager
def leased(
    site: Site, name: str | None, journal: Journal, policies: Sequence[Policy], *, returning: bool
) -> Iterator[RunLease]:
    """The lease on the VM of this name while a run goes on; `policies` say whose markers tell numbers of leases too. A
    run that was cut off keeps it to its end: what is in flight is still its own.

    A return goes on without a lock VM that cannot be used: no desktop stays away for that.
    """
    if name is None:
        yield RunLease()
        return
    try:
        nonces = Nonces(site.state_dir, site.vcenter.uuid, returning=returning)
        held = take(site, name, nonces, policies=policies, journal=journal, returning=returning)
    except Refused as unusable:
        if not returning:
            raise
        yield RunLease(unusable=unusable.message)
        return
    try:
        yield RunLease(held, lock_vm=name)
    except Refused:
        _freed(held)
        raise
    _freed(held)


def _freed(held: HeldLease) -> None:
    with suppress(GpuopsError):  # it runs out by itself, and what the run has done stays done
        held.give_back()
