"""Rotation, under leases: which lock VM's lease the return of a VM goes under, and what is left alone without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuops.model.rotation import Policy
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.ours import Ours, Whereabouts, once_done

_QUIET: Final = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


def lock_vm_of(policy: Policy, spoken: Policy) -> str | None:
    """Name of the lock VM whose lease the return of a night under this policy goes under. A night that had none goes
    under that of the policy that speaks now."""
    return policy.lock_vm or spoken.lock_vm


def lock_vms(found: Iterable[Ours], spoken: Policy) -> Mapping[str, str | None]:
    """The same by VM, for those that are there."""
    return {mine.vm.ref: lock_vm_of(mine.policy, spoken) for mine in found if mine.vm is not None}


def policies_under(name: str, policies: Sequence[Policy], spoken: Policy) -> tuple[Policy, ...]:
    """Those of the policies whose nights are returned under the lease on this lock VM."""
    return tuple(dict.fromkeys(policy for policy in policies if lock_vm_of(policy, spoken) == name))


def kept_apart(
    found: Iterable[Ours], spoken: Policy, elsewhere: Mapping[str, str]
) -> tuple[tuple[Ours, ...], tuple[Ours, ...]]:
    """What may be returned, and what may not: `elsewhere` says by lock VM who holds its lease on another machine."""
    mine = tuple(found)
    theirs = tuple(each for each in mine if lock_vm_of(each.policy, spoken) in elsewhere)
    return tuple(each for each in mine if each not in theirs), theirs


def left_alone(theirs: Iterable[Ours], spoken: Policy, elsewhere: Mapping[str, str]) -> tuple[Rejection, ...]:
    """What is said of each that is not as it was."""
    return tuple(
        Rejection(
            each.original.name,
            f"{each.reason}; lock VM {(name := lock_vm_of(each.policy, spoken))}: {elsewhere[name or '']}: not touched",
            hint=once_done("wait for that run to end"),
        )
        for each in theirs
        if each.whereabouts not in _QUIET
    )
