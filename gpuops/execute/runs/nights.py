"""What the journal knows of nights: their policies, and VMs as they were before, which the return must restore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from gpuops.config.policy import parse_policy
from gpuops.errors import PolicyError, UsageError
from gpuops.execute.journal import Journal, Run
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.ml_queue import GuestCommand
from gpuops.model.nights.night_record import Original
from gpuops.model.nights.rotation import LATE, Policy
from gpuops.model.stored import to_stored
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.power_moments import started_anew
from gpuops.plan.rotation.taken_vms import vms_of


class NightVms:
    """The originals in a journal, of its vCenter."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def save(self, originals: Sequence[Original], run: Run | None = None) -> None:
        """Keeps what the morning must restore, and that it is returned under the policy of this run.

        What is already saved of this night stays as it was saved.
        """
        self._journal.save([_body(original) for original in originals], run)

    def save_marked(self, original: Original) -> None:
        """Keeps a VM that its marker alone says was taken."""
        self._journal.save([{**_body(original), "taken": True}])

    def save_adopted(self, originals: Sequence[Original], run: Run) -> None:
        """Keeps VMs that a night of another vCenter took, with all that its journal knows of them."""
        self._journal.save([_adopted_body(original) for original in originals], run)

    def record_return(self, original: Original) -> None:
        """The VM was seen as it was before the night."""
        self._journal.record_return(original.night, original.vm)

    def all(self, night: str | None = None, *, returned: bool = False) -> tuple[Original, ...]:
        """What nights have saved and not seen returned; with `night`, that night's returned ones too.

        `returned`: those of every night, as far as they are remembered.
        """
        state, now = self._journal.state, self._journal.clock()
        found = [
            Original(
                night=saved.night,
                role=saved.role,
                vm=saved.vm,
                uuid=saved.uuid,
                name=saved.name,
                host=saved.host,
                profiles=saved.profiles,
                gpu_modes=saved.gpu_modes,
                # An effect that failed for certain did not take the VM; any other intent may have.
                taken=state.takes.get(key, 0) > 0,
                stopped=saved.stopped,
                returned=saved.returned is not None,
                drs=saved.drs,
                suspended_at=saved.suspended_at,
                started_at=saved.started_at,
                unsure=key in state.lost and now - state.lost[key] < LATE,
                policy=_remembered(saved.policy, self._journal) if saved.policy else None,
                leases=frozenset(state.leases.get(saved.night, ())),
                given_up=saved.returned is not None and saved.vm in state.given_up,
                closes_late=key in state.lost_closes and now - state.lost_closes[key] < LATE,
                gated_as=_gated_as(*state.gates.get(key, (0, ""))),
            )
            for key, saved in state.originals.items()
            if saved.returned is None or saved.night == night or returned
        ]
        return tuple(sorted(found, key=lambda original: (original.night, original.name)))


def _gated_as(count: int, machine: str) -> str | None:
    return machine if count > 0 else None


def _body(original: Original) -> dict[str, Any]:
    return {
        "night": original.night,
        "vm": original.vm,
        "role": str(original.role),
        "uuid": original.uuid,
        "name": original.name,
        "host": original.host,
        "profiles": list(original.profiles),
        **({"drs": str(original.drs)} if original.drs is not None else {}),
        **({"gpu_modes": dict(original.gpu_modes)} if original.gpu_modes else {}),
        **({"owner": to_stored(original.owner)} if original.owner is not None else {}),
    }


def _adopted_body(original: Original) -> dict[str, Any]:
    suspended, started = original.suspended_at, original.started_at
    return {
        **_body(original),
        "taken": True,
        **({"suspended": suspended.isoformat()} if suspended is not None else {}),
        **({"started": started.isoformat()} if started is not None else {}),
        **({"stopped": True} if original.stopped else {}),
        **({"gate": original.gated_as} if original.gated_as is not None else {}),
    }


def note_later_starts(originals: Iterable[Original], inventory: Inventory, vcenter: Vcenter) -> tuple[Original, ...]:
    """These originals as the night may still count them: an ML VM that stopped, and that somebody else has started
    since, is its night's no more. vCenter is asked only about VMs that show a later start than that of their night."""
    return tuple(
        replace(original, stopped=True)
        if original.started_at is not None
        and not (original.returned or original.stopped)
        and any(
            started_anew(original, vm) and vcenter.started_by_others(vm.ref, original.started_at)
            for vm in vms_of(original, inventory)
        )
        else original
        for original in originals
    )


def own_policy(text: str, journal: Journal | None) -> Policy:
    """The policy of this text in the journal. Raises PolicyError.

    Where others can write the journal, it is without commands that no policy file of this machine names: whoever may
    write into the database must not have a command run in a guest.
    """
    return _parsed(text, journal.own_commands() if journal is not None and journal.own_commands is not None else None)


@lru_cache(maxsize=16)
def _parsed(text: str, own: frozenset[GuestCommand] | None) -> Policy:
    """Once for all the VMs of a night."""
    policy = parse_policy(text, "the journal", accepted_before=True)
    return policy if own is None else policy.with_commands(own)


def _remembered(text: str, journal: Journal) -> Policy | None:
    """None = this version cannot read it, and the policy that is said speaks."""
    try:
        return own_policy(text, journal)
    except PolicyError:
        return None


def policies_of(journal: Journal | None) -> tuple[Policy, ...]:
    """The policies of the nights that are not over."""
    found = NightVms(journal).all() if journal is not None else ()
    return tuple(dict.fromkeys(each.policy for each in found if each.policy is not None))


def lock_vms_of(journal: Journal | None) -> frozenset[str]:
    """Names of the lock VMs that the journal knows: those of nights that are not over, and those whose lease a run has
    held."""
    if journal is None:
        return frozenset()
    named = {policy.lock_vm for policy in policies_of(journal) if policy.lock_vm is not None}
    return frozenset(named.union(journal.state.lease_numbers))


def known_originals(journal: Journal | None, policy: Policy, now: datetime) -> tuple[Original, ...]:
    """What the journal knows of nights that are not over, and of the one that is now; nothing without a journal."""
    if journal is None:
        return ()
    return NightVms(journal).all(policy.night(now) if policy.windows else None)


def last_policy(journal: Journal | None) -> Policy | None:
    """The last night's policy; None = the journal knows of no night. The lease on its lock VM keeps rotations of other
    machines away."""
    text = journal.last_policy(RunKind.NIGHT) if journal is not None else None
    return own_policy(text, journal) if text else None


def remembered_policy(journal: Journal | None) -> Policy:
    """The same, where there must be one. Raises UsageError, or why the journal was lost."""
    policy = last_policy(journal)
    if policy is None and journal is not None and journal.lost is not None:
        raise journal.lost
    if policy is None:
        raise UsageError("no night in the journal of this vCenter", hint="say the policy: --policy FILE")
    return policy
