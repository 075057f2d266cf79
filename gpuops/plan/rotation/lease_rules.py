"""Writes, numbers, renews and judges the lease on the lock VM in vCenter: only the run that holds it may act, whichever
machine it runs on. `execute` reads and writes the lease by compare-and-set.

All moments are vCenter's, so two machines need not agree on the time. If two runs write for the same changeVersion,
vCenter refuses one of them (vSphere API reference, VirtualMachineConfigSpec.changeVersion).

The number of a lease (`epoch`) is higher than every number seen before it, and comes from vCenter's clock. Two leases
can only have the same number if that clock was set back and the lock VM was reverted as well. The number is on the lock
VM, in the journal of its holder, and in each marker that was set under the lease. A lock VM that was reverted to a
snapshot therefore has a lower number than these.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from gpuops.errors import Refused
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import MOST_LEASES, parse_marker
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_zoned_second
from gpuops.model.vcenter.inventory import Inventory

KEY: Final = "gpuops.lease"
"""The extraConfig key of the lock VM."""

HEARTBEAT_S: Final = 60.0
TTL_S: Final = 3 * HEARTBEAT_S
"""If a lease was not renewed for this long, any run may take it."""

CALL_TIMEOUT_S: Final = 30.0
"""A call may reach vCenter this long after it was sent."""

_FORMAT: Final = 1
_OWNER_LENGTH: Final = 100
_REMOVE_LEASE: Final = f"if no other gpuops is running, remove {KEY} from the advanced parameters of the VM"


@dataclass(frozen=True, slots=True)
class Lease:
    """Which run may act, and until when."""

    owner: str
    """Machine and process of the run, for messages."""
    nonce: str
    """Identifies the run; empty = the lease was given back."""
    epoch: int
    """The number of the lease: higher with each new holder."""
    expires: datetime

    def is_held_at(self, now: datetime) -> bool:
        return bool(self.nonce) and now < self.expires


class Numbered(NamedTuple):
    """A lease number, and where it was found."""

    number: int
    where: str


NO_NUMBER: Final = Numbered(0, "nothing")


def parse_lease(text: str) -> Lease | None:
    """Return the lease in this text; None = no run ever held one. Raises Refused if gpuops did not write the text."""
    if not text:
        return None
    try:
        fields: Any = json.loads(text)
        if fields["format"] != _FORMAT:
            raise ValueError
        lease = Lease(
            str(fields["owner"]), str(fields["nonce"]), int(fields["epoch"]), datetime.fromisoformat(fields["expires"])
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Refused(
            f"the lock VM holds in {KEY} a value that this gpuops did not write: {text[:80]!r}", hint=_REMOVE_LEASE
        ) from error
    if not 0 <= lease.epoch <= MOST_LEASES:
        raise Refused(
            f"the lock VM holds in {KEY} a lease number that no gpuops writes: {text[:80]!r}", hint=_REMOVE_LEASE
        )
    if lease.expires.tzinfo is None:
        raise Refused(f"the lock VM holds in {KEY} an expiry without a zone: {text[:80]!r}", hint=_REMOVE_LEASE)
    return lease


def lease_text(lease: Lease) -> str:
    """Return the lease as the text that is stored on the lock VM."""
    fields = {
        "format": _FORMAT,
        "owner": lease.owner[:_OWNER_LENGTH],
        "nonce": lease.nonce,
        "epoch": lease.epoch,
        "expires": lease.expires.isoformat(),
    }
    return json.dumps(fields, sort_keys=True)


def holder_of(lease: Lease | None, now: datetime, dead: Collection[str]) -> Lease | None:
    """Return the lease if a run still holds it; None = it is free. `dead`: nonces of runs that have ended."""
    if lease is None or not lease.is_held_at(now) or lease.nonce in dead:
        return None
    return lease


def number_of(lease: Lease | None) -> int:
    """Return the number of the lease; 0 if no run ever held one."""
    return lease.epoch if lease is not None else 0


def number_in_markers(policy: Policy, inventory: Inventory) -> Numbered:
    """Return the highest lease number in the markers of the VMs that the policy covers.

    Other VMs do not count, because nights of other policies may have their own lock VM.
    """
    highest = NO_NUMBER
    for vm in inventory.vms.values():
        marker = parse_marker(vm.attributes.get(policy.marker, ""))
        if marker is None or marker.lease is None or marker.lease <= highest.number:
            continue
        if policy.pool_of(vm) is not None or entry_of(policy.ml, vm) is not None:
            highest = Numbered(marker.lease, f"the marker of {vm.name}")
    return highest


def reverted_lock_vm(lock_vm_name: str, lease_on_vm: Lease | None, highest: Numbered) -> str | None:
    """Return what is wrong with a lock VM whose lease number is lower than one seen elsewhere, or None."""
    if number_of(lease_on_vm) >= highest.number:
        return None
    found_number = f"lease number {lease_on_vm.epoch}" if lease_on_vm is not None else "no lease"
    return (
        f"lock_vm: {lock_vm_name} carries {found_number}, {highest.where} has {highest.number}: "
        "the VM was reverted to a snapshot or created again"
    )


def next_lease(previous: Lease | None, owner: str, nonce: str, now: datetime, highest: Numbered = NO_NUMBER) -> Lease:
    """Return the lease of a new holder. Raises Refused if there is no higher number.

    Its number is vCenter's time in hundredths of a second since 1970, or one more than the highest number seen. While
    that clock goes forward no number is used twice, even if the lock VM was reverted to a state before a lease that
    this machine does not know.
    """
    number = max(number_of(previous), highest.number) + 1
    clock_number = int(now.timestamp() * 100)
    if number < clock_number <= MOST_LEASES:
        number = clock_number
    if number > MOST_LEASES:
        place = highest.where if highest.number >= number_of(previous) else f"{KEY} on the lock VM"
        reason = f"the lease number {number - 1} is the highest possible, so no lease can follow it"
        raise Refused(reason, hint=f"gpuops did not write this number: correct {place}")
    return Lease(owner, nonce, number, now + timedelta(seconds=TTL_S))


def renew_lease(lease: Lease, now: datetime) -> Lease:
    """Return the lease with a new expiry, a full TTL from now."""
    return replace(lease, expires=now + timedelta(seconds=TTL_S))


def release_lease(lease: Lease, now: datetime) -> Lease:
    """Return the lease as its holder gives it back: free, with the same number."""
    return replace(lease, nonce="", expires=now)


def same_holder(lease: Lease | None, expected: Lease) -> bool:
    """Return whether the same run wrote both leases."""
    return lease is not None and (lease.nonce, lease.epoch) == (expected.nonce, expected.epoch)


def must_renew(left_s: float) -> bool:
    """Return whether a heartbeat has passed since the lease was last written. `left_s`: seconds until it expires."""
    return left_s <= TTL_S - HEARTBEAT_S


def is_fresh(lease: Lease, now: datetime) -> bool:
    """Return whether the lease was renewed within the last heartbeat and call: its run must then be considered
    alive."""
    return lease.is_held_at(now) and lease.expires - now >= timedelta(seconds=TTL_S - HEARTBEAT_S - CALL_TIMEOUT_S)


def may_act(left_s: float) -> bool:
    """Return whether a call that is sent now arrives before the lease expires, in `left_s` seconds."""
    return left_s > CALL_TIMEOUT_S


def lease_holder_text(lease: Lease) -> str:
    """Return who holds the lease and until when, for a message."""
    return f"{lease.owner} holds the lease until {format_zoned_second(lease.expires)} by vCenter's clock"
