"""The lease on the lock VM: taken before a run acts, renewed while it continues, given back at its end.

The state decides, not the reply: after each write gpuops reads the lease back, and holds it only if its own text is
there. The lease is judged by vCenter's time of the latest look and by this machine's monotonic clock, whichever is
stricter. The local deadline counts from before vCenter's clock was read, so that it is never later than the expiry that
other machines see.

vCenter checks no lease: one change that had passed its check when the lease changed hands may still take effect.

Why its writes are no steps of the executor: a step is sent only while the lease is held, and its intent may be in a
journal that only one machine reads, while the lease is for all machines. The lock VM itself is the record. A run writes
its nonce to the state directory before it requests the lease, so the machine of a killed run knows at once that the
lease is its own and dead. Nonces are files and no records of the book: a return needs them even if the journal cannot
be opened. Other machines wait until the lease expires. A write is repeated only after a look that does not show it.
`tests/execute/lease/test_lease.py` kills a run before and after each write.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from gpuops.errors import GpuopsError, LeaseReverted, Locked, Refused, StateDamaged, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.site import Site
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.files.private_file import write_private
from gpuops.model.nights.night_record import parse_marker
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import command
from gpuops.plan.rotation import lease_rules
from gpuops.plan.rotation.lease_rules import Numbered

_LONGEST_NAME: Final = 80
"""How many characters of a lock VM's name the file name holds: the length of a file name is limited."""


class Nonces:
    """The file with the nonces of this machine's leases on one lock VM: by its nonce, a run knows a lease as its own.

    Under the lock of this machine, all stored nonces belong to runs that have ended. `returning`: a file that cannot be
    used is ignored, so that the return can continue.
    """

    def __init__(self, state_dir: Path, vcenter: str, *, returning: bool = False, lock_vm: str = "") -> None:
        """`lock_vm`: its name. Each lock VM has its own file: a lease that a run leaves on one is recognised even after
        another run has taken a lease on another."""
        self._state_dir = state_dir
        self._vcenter = vcenter
        self._returning = returning
        self._tolerated: tuple[type[Exception], ...] = (StateDamaged,) if returning else ()
        self._path = state_dir / f"{_file_name_part(vcenter)}-{_file_name_part(lock_vm)[:_LONGEST_NAME]}.lease"

    def on(self, lock_vm: str) -> Nonces:
        """Return the nonces of leases on this lock VM."""
        return Nonces(self._state_dir, self._vcenter, returning=self._returning, lock_vm=lock_vm)

    def read(self) -> frozenset[str]:
        """Return the stored nonces. Empty if none are stored; then a lease that was left behind must expire first."""
        with suppress(*self._tolerated):
            if self._path.exists():
                private_file(self._path)
                return frozenset(self._path.read_text(encoding="ascii", errors="replace").split())
        return frozenset()

    def keep(self, nonces: Collection[str]) -> None:
        """Store these nonces in place of the earlier ones. A full disk is ignored, so that the return can continue."""
        with suppress(UsageError, *self._tolerated):
            prepare_state_dir(self._state_dir)
            private_file(self._path)
            write_private(self._path, "\n".join(sorted(nonces)))


def _file_name_part(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", name)


TRIES: Final = 3
"""How often gpuops tries to write the lease."""
WAIT_HINT: Final = "wait for it to end; gpuops rotate status shows it"


class NotWritten(Locked):
    """No run holds the lease, and it could not be written.

    `failed`: vCenter's error; None if the lock VM was changed in between.
    """

    def __init__(self, message: str, *, hint: str, failed: GpuopsError | None) -> None:
        super().__init__(message, hint=hint)
        self.failed = failed


class HeldLease:
    """A lease that was taken. `lost` is the reason if it is no longer held.

    Each look that shows the lease as ours permits one change; the next change needs a new look, because the clocks of a
    paused machine do not show how much time has passed.

    `returning`: a lease that cannot be renewed does not stop a return as long as no other run has taken it.
    """

    def __init__(
        self,
        vm: LockVm,
        lease: lease_rules.Lease,
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
        self._next_try_s = -math.inf
        """Until this time, a lease that could not be renewed is read but not written."""
        self._latest_look: tuple[datetime, float] = vm.seen.taken_at, deadline_s - lease_rules.TTL_S
        """vCenter's time at the latest look, and when that look was requested."""
        self.is_confirmed = False
        """Whether a look has shown the lease as ours since the last change was sent."""
        self.lost: str | None = None
        self.why_not_renewed = ""
        """Why a return continued without a renewed lease; "" if it did not."""
        self.reverted = ""
        """Why the number on the lock VM was written again after a revert; "" if it was not."""

    @property
    def number(self) -> int:
        return self._lease.epoch

    @property
    def lock_vm(self) -> str:
        """The managed object id of the lock VM."""
        return self._vm.ref

    @property
    def seen(self) -> Inventory:
        """The snapshot that the lease was taken on, with the latest reading of the lock VM."""
        return self._vm.seen

    def objection(self) -> str | None:
        """Return why the next change must not be sent, or None.

        None requires a reading of the lock VM since the last change, and a lease that, by both clocks (vCenter's and
        ours), lasts longer than one call can take. A return needs neither as long as nothing shows that the lease was
        lost. Renews the lease when due.
        """
        if self.lost is None and not self.is_confirmed:
            self._look()
        self.renew_if_due()
        if self.lost is None and not self._returning and not (self.is_confirmed and lease_rules.may_act(self._left_s)):
            return f"the lease on the lock VM could not be renewed: {self._vm.why}"
        return self.lost

    def note_change_sent(self) -> None:
        """Note that a change is sent: the look that permitted it permits no other change."""
        self.is_confirmed = False

    def note_look(self, inventory: Inventory, vms: Collection[str], asked_s: float) -> None:
        """Use what a look at these VMs showed: vCenter's time, the lease, and markers with later lease numbers.

        `asked_s`: when the look was requested, by our clock.
        """
        self._latest_look = inventory.taken_at, asked_s
        if self._vm.ref in vms:
            self._read(partial(self._vm.read, inventory))
        markers = (
            parse_marker(inventory.vms[ref].attributes.get(self._marker, "")) for ref in vms if ref in inventory.vms
        )
        highest = max((marker.lease or 0 for marker in markers if marker is not None), default=0)
        if highest > self.number and not self._returning and self.lost is None:
            self.lost = f"another run took the lease: a marker names lease number {highest}, ours is {self.number}"

    def renew_if_due(self) -> None:
        """Renew the lease if it expires soon, in at most `TRIES` tries."""
        if self.lost is not None or not lease_rules.must_renew(self._left_s):
            return
        # a return continues without a lease that it could not renew, and tries to write it once per heartbeat
        look_only = self._passed_s() < self._next_try_s
        for _ in range(1 if look_only else TRIES):
            self._renew(look_only=look_only)
            if self.lost is not None or not lease_rules.must_renew(self._left_s):
                return
        if self._returning and not look_only:
            self.why_not_renewed = f"the lease on the lock VM could not be renewed: {self._vm.why}"
            self._next_try_s = self._passed_s() + lease_rules.HEARTBEAT_S

    def give_back(self) -> None:
        """Free the lease for other runs at once. If that fails, it expires."""
        shown_lease = self._vm.look()
        if lease_rules.same_holder(shown_lease, self._lease):
            self._vm.write(lease_rules.release_lease(self._lease, self._vm.seen.taken_at))

    def _look(self) -> bool:
        """Read the lease, and return whether it could be read."""
        asked_s = self._passed_s()
        was_read = self._read(self._vm.look)
        self._latest_look = self._vm.seen.taken_at, asked_s
        return was_read

    def _read(self, read_lease: Callable[[], lease_rules.Lease | None]) -> bool:
        """Set `is_confirmed` and `lost` by the lease that `read_lease` returns. Return False if it cannot be read."""
        self.is_confirmed = False
        try:
            shown_lease = read_lease()
        except Refused as unusable:
            self._vm.why = unusable.message
            # a new lock VM may be made in its place, and another run may take a lease on that one
            if self._vm.is_gone and not self._returning:
                self.lost = unusable.message
            return False
        if lease_rules.same_holder(shown_lease, self._lease):
            self.is_confirmed = True
        elif self._returning and self._is_free(shown_lease):
            self._deadline_s = -math.inf  # the VM was reverted: the lease is due at once and is written again
        elif self.lost is None:
            self.lost = f"the lease on the lock VM is not ours any more: {self._loss_reason(shown_lease)}"
        return True

    def _is_free(self, shown_lease: lease_rules.Lease | None) -> bool:
        """Return whether the lock VM was reverted to a snapshot and no run has taken the lease since."""
        older = lease_rules.number_of(shown_lease) < self.number
        return older and lease_rules.holder_of(shown_lease, self._vm.seen.taken_at, ()) is None

    def _loss_reason(self, shown_lease: lease_rules.Lease | None) -> str:
        """Return why the lease that a look showed is not ours."""
        if shown_lease is None or shown_lease.epoch < self.number:
            shown_number = lease_rules.number_of(shown_lease)
            return f"the VM was reverted to a snapshot: lease number {shown_number}, ours is {self.number}"
        return lease_rules.lease_holder_text(shown_lease) if shown_lease.nonce else "another run or user released it"

    def _renew(self, *, look_only: bool) -> None:
        """Write the lease with a later expiry. If the latest look at the lock VM is older than a heartbeat, look again
        first, and write nothing if the lease cannot be read or is lost. `look_only`: write nothing in any case."""
        is_recent = self.is_confirmed and self._passed_s() - self._latest_look[1] < lease_rules.HEARTBEAT_S
        if not is_recent and not self._look():
            return
        if self.lost is not None or look_only:
            return
        now, asked_s = self._latest_look
        renewed_lease = lease_rules.renew_lease(self._lease, now)
        # The write ends the permission of the latest look; only if it reads our renewed lease back is there a new one.
        self.is_confirmed = False
        try:
            self.is_confirmed = self._vm.write(renewed_lease)
        except Refused as unusable:
            self._vm.why = unusable.message
        if self.is_confirmed:
            # The new expiry counts from vCenter's time in that look, our deadline from when we requested the look. That
            # is earlier, so the deadline is never later than the expiry that other machines see.
            self._lease, self._deadline_s = renewed_lease, asked_s + lease_rules.TTL_S
            self._latest_look = self._vm.seen.taken_at, self._passed_s()

    @property
    def _left_s(self) -> float:
        """Seconds until the lease expires, by vCenter's clock or by ours, whichever gives less."""
        vcenter_time, asked_s = self._latest_look
        until_expiry = self._lease.expires - vcenter_time
        return min(self._deadline_s - self._passed_s(), until_expiry.total_seconds() - (self._passed_s() - asked_s))


def take(
    site: Site,
    name: str,
    nonces: Nonces,
    *,
    policies: Sequence[Policy] = (),
    journal: Journal | None = None,
    returning: bool = False,
    ref: str | None = None,
    before: Inventory | None = None,
) -> HeldLease:
    """Take the lease on the VM of this name, with a number above all known ones.

    `ref`: the VM's managed object id, if the name is ambiguous. `before`: a look made just before. Raises Locked,
    naming the holder, and Refused if the lock VM cannot be used.

    If the lock VM has a lower number than one that was seen, a night raises LeaseReverted, and a return writes a higher
    number. If no run holds the lease and it cannot be written, for example because a task hangs on the lock VM, a night
    raises NotWritten and a return raises Refused.

    Call it only under the lock of this machine: a lease left by a run of this state directory is then known to be dead.
    """
    before = before or site.vcenter.inventory()
    if any(policy.needs_tags for policy in policies) and not returning:
        before = site.vcenter.with_tags(before)
    vm, nonces = LockVm(site.vcenter, name, before, ref=ref), nonces.on(name)
    if vm.managed is not None and not returning:
        raise Refused(
            f"lock_vm: {name} {vm.managed}",
            hint="set lock_vm to a VM that no other product manages, or let gpuops rotate init create one",
        )
    nonce = secrets.token_hex(8)
    # Keep all nonces until the lease is ours: the last request of a killed run may take effect between two tries.
    own_nonces = nonces.read() | {nonce}
    for number in range(TRIES + 1):
        began_s = site.passed_s()
        shown_lease = vm.look()
        holder = lease_rules.holder_of(shown_lease, vm.seen.taken_at, own_nonces)
        if holder is not None:
            raise Locked(lease_rules.lease_holder_text(holder), hint=WAIT_HINT)
        if number == TRIES:  # this round only looks for a holder, after the last write failed
            break
        highest = highest_number(name, policies, journal, vm.seen)
        revert = lease_rules.reverted_lock_vm(name, shown_lease, highest)
        if revert is not None and not returning:
            raise LeaseReverted(revert, hint=when_reverted(highest))
        nonces.keep(own_nonces)
        next_lease = lease_rules.next_lease(shown_lease, owner(), nonce, vm.seen.taken_at, highest)
        if vm.write(next_lease):
            nonces.keep({nonce})
            marker = policies[0].marker if policies else ""
            lease = HeldLease(
                vm, next_lease, began_s + lease_rules.TTL_S, site.passed_s, marker=marker, returning=returning
            )
            lease.reverted = revert or ""
            return lease
    why = f"the lease on {name} could not be written in {TRIES} tries: {vm.why}"
    hint = (vm.failed.hint if vm.failed is not None else "") or "try again"
    raise Refused(why, hint=hint) if returning else NotWritten(why, hint=hint, failed=vm.failed)


def when_reverted(highest: Numbered) -> str:
    """Return the advice for a lock VM that was reverted."""
    unlock = command("rotate unlock", id=str(highest.number))
    return f"make sure that no machine rotates, then: {unlock} --policy FILE; gpuops rotate day works without it"


def lease_on(site: Site, name: str, inventory: Inventory, highest: Numbered) -> tuple[lease_rules.Lease | None, str]:
    """Return the lease on the VM of this name (None if no run holds it), and why it cannot be used ("" if it can)."""
    try:
        vm = LockVm(site.vcenter, name, inventory)
        shown_lease = vm.look()
    except Refused as unusable:
        return None, unusable.message
    revert = lease_rules.reverted_lock_vm(name, shown_lease, highest)
    is_held = shown_lease is not None and shown_lease.nonce  # a lease without a nonce was given back
    return shown_lease if is_held else None, revert or ""


@dataclass(frozen=True, slots=True)
class RunLease:
    """The lease of a run: `held`, or None and the reason in `unusable`."""

    held: HeldLease | None = None
    unusable: str = ""
    lock_vm: str = ""
    """Name of the lock VM."""

    @property
    def numbered(self) -> tuple[str, int] | None:
        """Name of the lock VM and number of the lease, for the journal; None if it is not held."""
        return (self.lock_vm, self.held.number) if self.held is not None else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of a return that continued without the lease, or that wrote the number on the lock VM again."""
        why = self.unusable or (self.held.why_not_renewed if self.held is not None else "")
        warnings = (f"{why}: this machine's lock alone keeps other runs away",) if why else ()
        revert = self.held.reverted if self.held is not None else ""
        return (*warnings, f"{revert}; gpuops has written the right number again") if revert else warnings

    def require_not_lost(self) -> None:
        """Raise Locked if the lease was lost during the run: steps in flight are finished, the others not begun."""
        if self.held is not None and self.held.lost is not None:
            raise Locked(f"{self.held.lost}: nothing more was started", hint="gpuops rotate status shows who rotates")


@contextmanager
def lease_during_run(
    site: Site, name: str | None, journal: Journal, policies: Sequence[Policy], *, returning: bool
) -> Iterator[RunLease]:
    """Hold the lease on the VM of this name while the block runs. Without a name, yield a RunLease without a lease.

    The markers of `policies` give lease numbers too. A run that was cut off keeps the lease until it expires: requests
    in flight still belong to the run. A return continues without a lock VM that cannot be used, so that every desktop
    comes back.
    """
    if name is None:
        yield RunLease()
        return
    try:
        nonces = Nonces(site.state_dir, site.vcenter.uuid, returning=returning)
        lease = take(site, name, nonces, policies=policies, journal=journal, returning=returning)
    except Refused as unusable:
        if not returning:
            raise
        yield RunLease(unusable=unusable.message)
        return
    try:
        yield RunLease(lease, lock_vm=name)
    except Refused:  # nothing is in flight; after any other error the lease must expire
        _try_to_give_back(lease)
        raise
    _try_to_give_back(lease)


def _try_to_give_back(lease: HeldLease) -> None:
    with suppress(GpuopsError):  # the lease expires by itself, and the changes of the run stay
        lease.give_back()
