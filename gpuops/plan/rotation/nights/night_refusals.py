"""Why there is no night where everything is in order but what earlier runs came to, or what owners have said."""

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

_NAMED: Final = 3
"""So many VMs of an open night are named where it is refused."""
_CORRECT_FOLDER: Final = "correct the pool's `folder` in the policy, or remove the pool from it"
_AGREE: Final = (
    "gpuops help marks: put it on the desktops whose owners agree; `owner: none` lets the policy alone select"
)


def not_over(night: str, away: Sequence[TakenVm]) -> Rejection:
    """One refusal for an earlier night, however many of its VMs are not back."""
    names = [taken_vm.original.name for taken_vm in away]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    rule = f"is not over: {', '.join(names[:_NAMED])}{more} not back yet"
    return Rejection(f"night {night}", rule, hint=f"{RETURN_COMMAND} ends it; gpuops rotate status names all of it")


def takes_nothing_more(night: str, steps: StepCounts, inventory: Inventory) -> list[Rejection]:
    """That so much of this night has failed that it takes nothing more, however often it is begun."""
    why = reason_to_stop(steps, (), inventory)
    hint = f"look what failed: gpuops rotate status; {RETURN_COMMAND} brings back what it took"
    return [] if why is None else [Rejection(f"night {night}", f"takes nothing more: {why}", hint=hint)]


def nobody_agreed(policy: Policy, desktops: Survey) -> list[Rejection]:
    """A refusal for each pool, where no desktop of any pool carries its owner's mark."""
    disowned = dict(desktops.disowned_pools)
    taken = [pool for pool in policy.pools if pool.is_taken_tonight and pool.users_kept_away]
    if any(pool.name not in disowned for pool in taken):
        return []
    return [
        Rejection(f"pool {name}", f"none of its desktops carries {mark}", hint=_AGREE)
        for name, mark in disowned.items()
    ]


def unknown_folders(policy: Policy, inventory: Inventory) -> list[Rejection]:
    """A refusal for each pool whose desktops a night may take and in whose folder this login sees no VM at all.

    The folder is misspelt, was renamed or cannot be seen. A pool that is empty for another reason is only warned of.
    """
    takes_desktops = policy.spare is None or policy.spare.take_idle
    pools = (pool for pool in policy.pools if takes_desktops and pool.users_kept_away)
    return [
        Rejection(f"pool {pool.name}", f"no VM is in folder {folder}{_meant(folder, inventory)}", hint=_CORRECT_FOLDER)
        for pool in pools
        if (folder := pool.select.folder) is not None
        and not any(pool.select.in_folder(vm) for vm in inventory.vms.values())
    ]


def _meant(folder: str, inventory: Inventory) -> str:
    near = get_close_matches(folder, sorted(set(_folders(folder, inventory))), n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _folders(folder: str, inventory: Inventory) -> Iterator[str]:
    """The folders that VMs are in, in the form of this one: paths from the root, or as many names in a row.

    For `desktops/cad` and a VM `/dc/vm/desktops/cad/desk-01`: `dc/vm`, `vm/desktops` and `desktops/cad`.
    """
    length = folder.strip("/").count("/") + 1
    for above in {vm.folder.strip("/") for vm in inventory.vms.values()}:
        names = above.split("/")
        if folder.startswith("/"):
            yield from (f"/{'/'.join(names[:end])}" for end in range(1, len(names) + 1))
        else:
            yield from ("/".join(names[start : start + length]) for start in range(len(names) - length + 1))
