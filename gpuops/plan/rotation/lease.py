"""The lease on a VM in vCenter that says which run may act, on whatever machine: how it is written, numbered, renewed
and judged. `execute` reads and writes it by compare-and-set.

All moments are vCenter's own, so that two machines need not agree on the time. Of two that write for the same
changeVersion one is refused (vSphere API reference, VirtualMachineConfigSpec.changeVersion).

The number of a lease (`epoch`) is higher than every one that was seen before it, and comes from vCenter's clock: two
leases have the same only where that clock was set back and the lock VM reverted as well. It is on the lock VM, in the
journal of its holder, and in each marker that was set under it. So a lock VM that was reverted to a snapshot is found
out by its lower number.
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
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory

KEY: Final = "gpuops.lease"
"""The extraConfig key of the lock VM."""

HEARTBEAT_S: Final = 60.0
TTL_S: Final = 3 * HEARTBEAT_S
"""A lease that was not renewed for so long may be taken by any run."""

CALL_TIMEOUT_S: Final = 30.0
"""A call that is sent may arrive so much later."""

_FORMAT: Final = 1
_OWNER_LENGTH: Final = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may act, and until when."""

    owner: str
    """For people: which machine and process."""
    nonce: str
    """Of this one run; empty = given back."""
    epoch: int
    """The number of the lease: higher with each new holder."""
    expires: datetime

    def held_at(self, now: datetime) -> bool:
        return bool(self.nonce) and now < self.expires


class Numbered(NamedTuple):
    """A lease number that was seen, and where."""

    number: int
    where: str


NO_NUMBER: Final = Numbered(0, "nothing")


def parse_lease(text: str) -> Lease | None:
    """The lease in this text; None = no run ever held it. Raises Refused for a text that no gpuops wrote."""
    if not text:
        return None
    try:
        body: Any = json.loads(text)
        if body["format"] != _FORMAT:
            raise ValueError
        lease = Lease(
            str(body["owner"]), str(body["nonce"]), int(body["epoch"]), datetime.fromisoformat(body["expires"])
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Refused(
            f"the lock VM holds in {KEY} what this gpuops did not write: {text[:80]!r}",
            hint=f"when no other gpuops is at work, take {KEY} out of the VM's settings",
        ) from error
    if not 0 <= lease.epoch <= MOST_LEASES:
        raise Refused(f"the lock VM holds in {KEY} a lease number that no gpuops writes: {text[:80]!r}")
    if lease.expires.tzinfo is None:
        raise Refused(f"the lock VM holds in {KEY} an expiry without a zone: {text[:80]!r}")
    return lease


def lease_text(lease: Lease) -> str:
    """The lease as the text that is kept on the lock VM."""
    body = {
        "format": _FORMAT,
        "owner": lease.owner[:_OWNER_LENGTH],
        "nonce": lease.nonce,
        "epoch": lease.epoch,
        "expires": lease.expires.isoformat(),
    }
    return json.dumps(body, sort_keys=True)


def holder_of(lease: Lease | None, now: datetime, dead: Collection[str]) -> Lease | None:
    """The lease that keeps a run from taking it now; None = it is free. `dead`: nonces of runs that have ended."""
    if lease is None or not lease.held_at(now) or lease.nonce in dead:
        return None
    return lease


def number_of(lease: Lease | None) -> int:
    """The lease's number; 0 where no run ever held it."""
    return lease.epoch if lease is not None else 0


def number_in_markers(policy: Policy, inventory: Inventory) -> Numbered:
    """The highest lease number in the markers of the VMs that the policy covers: nights of other policies may have a
    lock VM of their own."""
    highest = NO_NUMBER
    for vm in inventory.vms.values():
        marked = parse_marker(vm.attributes.get(policy.marker, ""))
        if marked is None or marked.lease is None or marked.lease <= highest.number:
            continue
        if policy.pool_of(vm) is not None or entry_of(policy.ml, vm) is not None:
            highest = Numbered(marked.lease, f"the marker of {vm.name}")
    return highest


def reverted(name: str, there: Lease | None, highest: Numbered) -> str | None:
    """What is wrong with a lock VM that carries a lower number than was seen elsewhere; None = nothing."""
    if number_of(there) >= highest.number:
        return None
    carries = f"lease number {there.epoch}" if there is not None else "no lease"
    return (
        f"lock_vm: {name} carries {carries}, {highest.where} says {highest.number}: "
        "the VM was reverted to a snapshot or made anew"
    )


def next_lease(before: Lease | None, owner: str, nonce: str, now: datetime, highest: Numbered = NO_NUMBER) -> Lease:
    """The lease of a new holder. Raises Refused where there is no higher number.

    Its number is vCenter's time (hundredths of a second since 1970), or one more than the highest that was seen: so no
    number is given twice while that clock goes forward, also where a lock VM was reverted to before a lease of which
    this machine knows nothing.
    """
    number = max(number_of(before), highest.number) + 1
    by_the_clock = int(now.timestamp() * 100)
    if number < by_the_clock <= MOST_LEASES:
        number = by_the_clock
    if number > MOST_LEASES:
        where = highest.where if highest.number >= number_of(before) else f"{KEY} on the lock VM"
        raise Refused(f"no lease number is higher than {number - 1}", hint=f"somebody wrote it by hand: mend {where}")
    return Lease(owner, nonce, number, now + timedelta(seconds=TTL_S))


def renewed(lease: Lease, now: datetime) -> Lease:
    """The lease with its full time again."""
    return replace(lease, expires=now + timedelta(seconds=TTL_S))


def given_back(lease: Lease, now: datetime) -> Lease:
    """The lease once it is free; its number stays."""
    return replace(lease, nonce="", expires=now)


def same_holder(one: Lease | None, other: Lease) -> bool:
    """Whether both are of one run."""
    return one is not None and (one.nonce, one.epoch) == (other.nonce, other.epoch)


def must_renew(left_s: float) -> bool:
    """Whether a heartbeat has passed since the lease was last written."""
    return left_s <= TTL_S - HEARTBEAT_S


def is_fresh(lease: Lease, now: datetime) -> bool:
    """Whether it was renewed so lately that its run must be taken for alive: a heartbeat and a call ago, or less."""
    return lease.held_at(now) and lease.expires - now >= timedelta(seconds=TTL_S - HEARTBEAT_S - CALL_TIMEOUT_S)


def may_act(left_s: float) -> bool:
    """Whether a call sent now cannot arrive after the lease has run out."""
    return left_s > CALL_TIMEOUT_S


def lease_holder_text(lease: Lease) -> str:
    """Who holds the lease and until when, for a message."""
    return f"{lease.owner} holds the lease until {lease.expires:%Y-%m-%d %H:%M:%S %Z} by vCenter's clock"
