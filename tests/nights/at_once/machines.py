"""Machines: a second one beside the night's own, with a journal of its own, under one lock VM; and what it may see.

One world in four has a lock VM. In most of their nights the machine at work is paused at some boundary: its monotonic
clock stands still, vCenter's goes on, and the other machine brings back what it finds. In some, somebody reverts the
lock VM to what it was in the evening. `Beside` is a run that is begun on the machine of another one that is under way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from gpuops.errors import GpuopsError, Locked, NotConnected, Refused
from gpuops.execute.lease import lease
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.plan.rotation.lease_rules import KEY, Lease, parse_lease
from gpuops.sim.core.object_store import somebody
from gpuops.sim.operations.recording import recorded
from tests.harness.killing import Killed
from tests.nights.faults.event import Event
from tests.nights.judging.doings import takings, told_late
from tests.nights.playing.place import Admission, NightPlace, NightStore
from tests.nights.world.worlds import LOCK, Site, is_leased

if TYPE_CHECKING:
    from gpuops.sim.objects.virtual_machine import VirtualMachine
    from gpuops.sim.world import World
    from tests.nights.playing.played import Played

PAUSED, REVERTED = "K6", "K11"
PAUSES_S: Final = (90, 200, 400, 900)


def leases_of(seed: int) -> list[Event]:
    """What befalls the machine and the lock VM of a seed that has one."""
    if not is_leased(seed):
        return []
    rng = random.Random(f"{seed}:machines")
    paused = Event(PAUSED, point=rng.randint(1, 60), at_s=float(rng.choice(PAUSES_S)))
    reverted = Event(REVERTED, point=rng.randint(1, 60))
    return rng.choice([[], [paused], [paused], [paused], [reverted], [reverted, paused]])


@contextmanager
def leases_of_a_seed(seed: int) -> Iterator[None]:
    """The owner and the ids of leases are the same each time that the night of this seed is played."""
    rng = random.Random(f"{seed}:ids")
    ids = SimpleNamespace(token_hex=lambda length: rng.randbytes(length).hex())
    with patch.object(lease, "secrets", ids), patch.object(lease, "owner", lambda: "a run of the night"):
        yield


class Machines:
    """The other machine, and the lock VM."""

    def __init__(self, site: Site, world: World) -> None:
        self._site, self._world = site, world
        self.store = NightStore(lambda point: None, lambda: len(world.ledger), lambda: False)
        self.stood_s = 0.0
        """How long the night's own machine was paused."""
        self.other_acts = False
        """Whether it is the other one that is at work."""
        lock_vms = [vm for vm in world.by_type("VirtualMachine") if vm.name == LOCK]
        self._lock_vm: VirtualMachine | None = lock_vms[0] if lock_vms else None
        self._evening = lock_vms[0].state.extra_config if lock_vms else ()

    def pause(self, seconds: float, states: Path, connect: Callable[[], Any], wait: Callable[[float], None]) -> None:
        """The night's own machine stands still for so long, and then the other one has its morning."""
        wait(seconds)
        self.stood_s += seconds
        try:
            vcenter = connect()
        except GpuopsError:
            return
        place = NightPlace(vcenter, states, self._world.clock.now, store=self.store)
        place.pause = wait
        place.passed_s = lambda: self._world.clock.now().timestamp()
        self.other_acts = True
        try:
            rotate(RunKind.DAY, self._site.policy, place, apply=True, consent=agreed)
        except GpuopsError:
            return
        finally:
            self.other_acts = False
            vcenter.close()

    def begin_a_return(self, states: Path, connect: Callable[[Callable[[str], None]], Any], points: int) -> None:
        """The other machine begins to bring back, and is cut off at so many boundaries."""
        points_left = [points]

        def boundary(point: str) -> None:
            points_left[0] -= 1
            if points_left[0] == 0:
                raise Killed(point)

        try:
            vcenter = connect(boundary)
        except GpuopsError:
            return
        place = NightPlace(vcenter, states, self._world.clock.now, store=self.store)
        place.passed_s = lambda: self._world.clock.now().timestamp()
        self.other_acts = True
        with suppress(GpuopsError, Killed):
            rotate(RunKind.DAY, self._site.policy, place, apply=True, consent=agreed)
        self.other_acts = False

    def revert(self) -> None:
        """The lock VM is as it was in the evening."""
        vm = self._lock_vm_now
        if vm is not None:
            self._set(vm, self._evening, "RevertToSnapshot_Task")

    def overwrite(self) -> None:
        """Somebody has written a note of his own where the lease is."""
        vm = self._lock_vm_now
        if vm is not None:
            self._set(vm, ((KEY, "reserved until Monday"),), "ReconfigVM_Task")

    @property
    def _lock_vm_now(self) -> VirtualMachine | None:
        """The lock VM, which another object stands for once it was registered again."""
        vm = self._lock_vm
        if vm is None or vm.is_registered:
            return vm
        other_vms = (vm_entity for vm_entity in self._world.by_type("VirtualMachine") if vm_entity.moid != vm.moid)
        return next(
            (vm_entity for vm_entity in other_vms if vm_entity.state.instance_uuid == vm.state.instance_uuid), vm
        )

    def _set(self, vm: VirtualMachine, extra_config: tuple[tuple[str, str], ...], method: str) -> None:
        with recorded(vm, somebody(self._world, method)):
            vm.state.extra_config = extra_config
            vm.state.change, vm.state.changed_at = vm.state.change + 1, self._world.clock.now()
            vm.configuration_changed(renamed=False)


def one_holder(night: Played) -> Iterator[str]:
    """I6: a night whose lease was taken by another run, or reverted, sends at most the one change that had passed its
    check; a lease that was given back since is still not its own. What was in flight before that may end, and where
    vCenter tells old values of its VMs, it tells old ones of the lock VM."""
    passed_on = list(_passed_on(night))
    late: Counter[int] = Counter()
    for change in night.world.ledger:
        run, half, length = night.sent_by.get(change.operation_id, (None, "", 0))
        if run is None or half != RunKind.NIGHT or night.is_lock_vm(change.moid):
            continue
        shown_at = night.asked.get(change.operation_id, change.at) - told_late(night)
        before = [(at, holding_run) for sequence, at, holding_run in passed_on if sequence <= length]
        holder = next((holding_run for at, holding_run in reversed(before) if at <= shown_at), run)
        is_ours = run in (holder, *(holding_run for at, holding_run in before if at > shown_at))
        late[run] += not is_ours
        if not is_ours and late[run] == 2:
            yield f"I6: {change.method} on {change.name} is the second change sent after its run's lease had passed on"


def under_a_lease(night: Played) -> Iterator[str]:
    """I6: where there is a lock VM, a night takes under a lease that its own run has written."""
    if any(policy.lock_vm is None for policy in night.site.policies):
        return
    passed_on = list(_passed_on(night))
    for entry in takings(night):
        run, half, _ = night.sent_by.get(entry.operation_id, (None, "", 0))
        if half == RunKind.NIGHT and not any(holder == run for at, _, holder in passed_on if at < entry.sequence):
            yield f"I6: {entry.method} on {entry.name}, and its run has written no lease"


def lease_in(state: Mapping[str, Any]) -> Lease | None:
    """Return the lease in the ledger's state of a lock VM; None without one, or if gpuops did not write it."""
    try:
        return parse_lease(state.get("extra_config", {}).get(KEY, ""))
    except Refused:
        return None


def _passed_on(night: Played) -> Iterator[tuple[int, datetime, int | None]]:
    """(number of the entry in the ledger, when, the run that has the lease from then on), None = it was reverted.

    Who moves, renames or starts the lock VM leaves the lease as it is.
    """
    for change in night.world.ledger:
        if night.is_lock_vm(change.moid) and "extra_config" in change.after:
            run, _, _ = night.sent_by.get(change.operation_id, (None, "", 0))
            lease_before, lease_after = (
                state.get("extra_config", {}).get(KEY, "") for state in (change.before, change.after)
            )
            lease = lease_in(change.after)
            if (lease_before != lease_after) if run is None else (lease is not None and lease.nonce):
                yield change.sequence, change.at, run


@dataclass(frozen=True)
class Beside:
    """Such a run, after its end."""

    error: GpuopsError | None
    """None = it ended without one."""
    lock: Admission
    """What the lock of the machine answered it."""
    sent: int = 0
    """How many changes it asked vCenter for; what others do to the VMs meanwhile is not its doing."""


def one_at_a_time(night: Played) -> Iterator[str]:
    """I6: of two runs on one machine, one acts; the other is refused by the lock, and asks vCenter for no change.

    A run reads vCenter before it asks for the lock: one that vCenter does not answer, or that does not find its lock VM
    there, may end without having asked.
    """
    lock_vm = night.site.policy.lock_vm
    for process in night.beside:
        refused = process.lock is Admission.REFUSED and isinstance(process.error, Locked)
        unfound = (
            lock_vm is not None
            and isinstance(process.error, Refused)
            and f"is called {lock_vm} " in process.error.message
        )
        could_not_read = process.lock is Admission.NOT_ASKED and (isinstance(process.error, NotConnected) or unfound)
        if process.sent or not (refused or could_not_read):
            ended = f"{type(process.error).__name__}: {process.error.message}" if process.error is not None else "done"
            yield f"I6: a run beside another ended as {ended}; the lock: {process.lock}; {process.sent} changes sent"
