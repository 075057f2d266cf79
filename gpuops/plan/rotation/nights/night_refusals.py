"""Refusals of a night because of earlier runs, of owners who have not agreed, or of folders without VMs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.nights.desktops import Survey
from gpuops.plan.rotation.nights.stop_conditions import StepCounts, reason_to_stop
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm

_NAMED_VMS: Final = 3
"""Number of VMs of an open night that its refusal names."""
_CORRECT_FOLDER: Final = "correct the pool's `folder` in the policy, or remove the pool from it"
_AGREE: Final = (
    "gpuops help marks: put it on the desktops whose owners agree; `owner: none` lets the policy alone select"
)


def refuse_open_night(night: str, away_vms: Sequence[TakenVm]) -> Rejection:
    """Return one refusal for an earlier night with VMs that are not back."""
    names = [taken_vm.original.name for taken_vm in away_vms]
    more_text = f" and {len(names) - _NAMED_VMS} more" if len(names) > _NAMED_VMS else ""
    reason = f"is not over: {', '.join(names[:_NAMED_VMS])}{more_text} not back yet"
    return Rejection(f"night {night}", reason, hint=f"{RETURN_COMMAND} ends it; gpuops rotate status names all of it")


def refuse_after_failures(night: str, steps: StepCounts, inventory: Inventory) -> list[Rejection]:
    """Return the refusal of a night of which too many steps have failed, also for later runs of it."""
    stop_reason = reason_to_stop(steps, (), inventory)
    hint = f"look what failed: gpuops rotate status; {RETURN_COMMAND} brings back what it took"
    return [] if stop_reason is None else [Rejection(f"night {night}", f"takes nothing more: {stop_reason}", hint=hint)]


def refuse_without_marks(policy: Policy, desktops: Survey) -> list[Rejection]:
    """Return a refusal for each pool if no desktop of any pool has the mark of its owner."""
    disowned = dict(desktops.disowned_pools)
    pools_to_take = [pool for pool in policy.pools if pool.is_taken_tonight and pool.users_kept_away]
    if any(pool.name not in disowned for pool in pools_to_take):
        return []
    return [
        Rejection(f"pool {name}", f"none of its desktops carries {mark}", hint=_AGREE)
        for name, mark in disowned.items()
    ]


def refuse_unknown_folders(policy: Policy, inventory: Inventory) -> list[Rejection]:
    """Return a refusal for each pool whose desktops a night may take and in whose folder this login sees no VM.

    The folder is misspelt, was renamed or cannot be seen. If a pool is empty for another reason, there is only a
    warning.
    """
    takes_desktops = policy.spare is None or policy.spare.take_idle
    pools = (pool for pool in policy.pools if takes_desktops and pool.users_kept_away)
    return [
        Rejection(
            f"pool {pool.name}",
            f"no VM is in folder {folder}{_suggest_folders(folder, inventory)}",
            hint=_CORRECT_FOLDER,
        )
        for pool in pools
        if (folder := pool.select.folder) is not None
        and not any(pool.select.in_folder(vm) for vm in inventory.vms.values())
    ]


def _suggest_folders(folder: str, inventory: Inventory) -> str:
    similar = get_close_matches(folder, sorted(set(_folders_like(folder, inventory))), n=3)
    return f"; did you mean {', '.join(similar)}?" if similar else ""


def _folders_like(folder: str, inventory: Inventory) -> Iterator[str]:
    """Yield the folders of VMs in the form of this one: paths from the root, or the same number of consecutive names.

    For `desktops/cad` and a VM `/dc/vm/desktops/cad/desk-01`: `dc/vm`, `vm/desktops` and `desktops/cad`.
    """
    length = folder.strip("/").count("/") + 1
    for above in {vm.folder.strip("/") for vm in inventory.vms.values()}:
        names = above.split("/")
        if folder.startswith("/"):
            yield from (f"/{'/'.join(names[:end])}" for end in range(1, len(names) + 1))
        else:
            yield from ("/".join(names[start : start + length]) for start in range(len(names) - length + 1))
