"""Rotation, keeping: what ML VMs do before they are stopped, and how long each has for that and for its shutdown.

A checkpoint's grace was reckoned with when the night took what it took. A morning that begins later than it was to has
less to give: what is left until the desktops are due, when the stops and resumes are taken away, is dealt out evenly.
Nothing is given when nothing is left: users come first, and it is said whose work is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import Checkpoint, GuestCommand, entry_of
from gpuops.model.rotation import Policy
from gpuops.model.vm import Vm
from gpuops.plan.core.steps import PowerOnVm, RunInGuest, ShutDownGuest, Step
from gpuops.plan.rotation.durations import Durations
from gpuops.plan.rotation.ours import Ours
from gpuops.plan.rotation.return_time import Load, ReturnTime

NONE: Final = Checkpoint()


@dataclass(frozen=True, slots=True)
class Keeping:
    """The steps, and whom they give less time than the policy does."""

    hooks: tuple[RunInGuest, ...]
    stops: tuple[ShutDownGuest, ...]
    warnings: tuple[str, ...]


def keeping(ml: Sequence[Ours], desktops: Sequence[Vm], now: datetime, durations: Durations) -> Keeping:
    """How these ML VMs are stopped, each under its own policy, so that these desktops are back in time."""
    policies = dict.fromkeys(mine.policy for mine in ml)
    most = {policy: _most_s(policy, ml, desktops, now, durations) for policy in policies}
    hooks, stops, warnings = [], [], []
    for mine in ml:
        if mine.vm is None:
            continue
        vm, stop, most_s = mine.vm.ref, mine.policy.ml_stop, most[mine.policy]
        # an entry may say the managed object id that it had then
        checkpoint = checkpoint_of(mine.policy, replace(mine.vm, ref=mine.original.vm), mine.original.name)
        grace_s = checkpoint.grace_s if most_s is None else min(checkpoint.grace_s, most_s)
        if grace_s < checkpoint.grace_s:
            warnings.append(f"{mine.original.name}: {grace_s} s to keep its work, not {checkpoint.grace_s}: it is late")
        if checkpoint.hook is None:
            stops.append(ShutDownGuest(vm, stop.grace_s + grace_s, stop.then_off))
            continue
        stops.append(ShutDownGuest(vm, stop.grace_s, stop.then_off))
        if grace_s > 0:
            hooks.append(replace(_run(vm, mine.original.name, checkpoint.hook), limit_s=grace_s))
    return Keeping(tuple(hooks), tuple(stops), tuple(warnings))


def checkpoint_of(policy: Policy, vm: Vm, was: str = "") -> Checkpoint:
    """What the policy says of a VM that `was` called so."""
    entry = entry_of(policy.ml, vm, was)
    return entry.checkpoint if entry is not None else NONE


def hooks_of(policy: Policy, steps: Iterable[Step], inventory: Inventory) -> tuple[RunInGuest, ...]:
    """What the morning will run in the guests of the ML VMs that these steps start."""
    started = {step.vm: inventory.vm(step.vm) for step in steps if isinstance(step, PowerOnVm)}
    found = ((vm, checkpoint_of(policy, vm).hook) for vm in started.values())
    return tuple(_run(vm.ref, vm.name, hook) for vm, hook in found if hook is not None)


def _run(ref: str, name: str, hook: GuestCommand) -> RunInGuest:
    return RunInGuest(ref, hook.program, hook.arguments, ssh=hook.ssh.of(name) if hook.ssh is not None else None)


def _most_s(
    policy: Policy, ml: Sequence[Ours], desktops: Sequence[Vm], now: datetime, durations: Durations
) -> int | None:
    """The longest grace that each of the ML VMs can have; None = nobody waits, or no window says until when."""
    if not desktops or not ml or not policy.windows:
        return None
    night = policy.night_at(now)
    if night is None:
        return 0
    load = Load.of(desktops, (mine.vm.host if mine.vm else None for mine in ml))
    times = ReturnTime(policy, durations, night.back_by)
    needed = max(times.needed(vm.host, load) for vm in desktops)
    left_s = (night.back_by - now - needed).total_seconds()
    return max(0, int(left_s) // times.stop_rounds(load))
