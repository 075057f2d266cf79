"""Lease: taken on the lock VM before a run acts, renewed while it goes on, given back at its end.

The state decides, not the reply: whoever wrote reads back, and holds the lease only when its own words are there.
The local deadline counts from before vCenter's clock was read, so that it never lies after the expiry that others see.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, Locked, NoPermission, NotConnected, Refused
from gpuops.execute.nonces import Nonces
from gpuops.execute.port import Vcenter
from gpuops.execute.site import Site
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.rotation import lease as rules
from gpuops.plan.rotation.lease import KEY
from gpuops.plan.steps import ReconfigureVm, VmChange

TRIES: Final = 3


class LockVm:
    """The lock VM of one vCenter: its lease as it was read last, and the one way to change it."""

    def __init__(self, vcenter: Vcenter, name: str, seen: Inventory | None = None) -> None:
        """Raises Refused where there is no such VM, or more than one."""
        self._vcenter = vcenter
        self._seen = seen or vcenter.inventory()
        found = [vm.ref for vm in self._seen.vms.values() if vm.name == name]
        if len(found) != 1:
            raise Refused(
                f"lock_vm: {len(found) or 'no'} VMs are called {name}", hint="one small VM, powered off, is needed"
            )
        self._name, self._ref = name, found[0]
        self.why = "somebody else is at it"
        """What the latest write that failed was told."""

    @property
    def seen(self) -> Inventory:
        """The latest look; its `taken_at` is vCenter's clock."""
        return self._seen

    def look(self) -> rules.Lease | None:
        """The lease as it is now. Raises Refused for what gpuops did not write."""
        self._seen = self._vcenter.observe(self._seen, {self._ref})
        settings = self._vm.extra_config
        if settings is None:
            raise Refused(f"lock_vm: the settings of {self._name} cannot be read")
        return rules.parse_lease(settings.get(KEY, ""))

    def write(self, lease: rules.Lease) -> bool:
        """Whether the lease is this one now, unless the VM was changed since the last look. Looks anew."""
        step = ReconfigureVm(self._ref, VmChange(extra_config={KEY: rules.lease_text(lease)}))
        try:
            task = self._vcenter.submit(step, self._seen, f"gpuops-lease-{lease.nonce or 'back'}-{lease.epoch}")
            ended = list(self._vcenter.wait([task], rules.CALL_TIMEOUT_S)) if task is not None else []
            self.why = next((end.error.message for end in ended if end.error is not None), self.why)
        except (NotConnected, NoPermission):
            raise
        except GpuopsError as error:  # busy, or overtaken, or its reply was lost: what is there now tells
            self.why = error.message
        return self.look() == lease

    @property
    def is_gone(self) -> bool:
        """Whether the latest look did not find the VM."""
        return self._ref not in self._seen.vms

    @property
    def _vm(self) -> Vm:
        vm = self._seen.vms.get(self._ref)
        if vm is None:
            raise Refused(f"lock_vm: {self._name} is gone from vCenter")
        return vm


class Held:
    """A lease that was taken. `lost` says why it is no more.

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
        returning: bool = False,
    ) -> None:
        self._vm = vm
        self._lease = lease
        self._deadline_s = deadline_s
        self._passed_s = passed_s
        self._returning = returning
        self._again_s = -math.inf
        """Before then a lease that could not be renewed is looked at, not written."""
        self.lost: str | None = None
        self.without = ""

    def objection(self) -> str | None:
        """Why nothing more may be started; None = it is ours for longer than a call may take, or we return and it is
        nobody's. Renews it when due."""
        self.keep()
        if self.lost is None and not rules.may_act(self._left_s) and not self._returning:
            return f"the lease on the lock VM could not be renewed: {self._vm.why}"
        return self.lost

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
            self._vm.write(rules.given_back(self._lease, self._vm.seen.taken_at))

    def _renew(self, *, look_only: bool) -> None:
        began = self._passed_s()
        try:
            there = self._vm.look()
            if not rules.same_holder(there, self._lease):
                who = rules.told(there) if there is not None and there.nonce else "somebody gave it back"
                self.lost = f"the lease on the lock VM is not ours any more: {who}"
                return
            wanted = rules.renewed(self._lease, self._vm.seen.taken_at)
            if not look_only and self._vm.write(wanted):
                self._lease, self._deadline_s = wanted, began + rules.TTL_S
        except Refused as unusable:
            self._vm.why = unusable.message
            if self._vm.is_gone and not self._returning:  # whoever makes another one may take a lease on that
                self.lost = unusable.message

    @property
    def _left_s(self) -> float:
        return self._deadline_s - self._passed_s()


def take(site: Site, name: str, nonces: Nonces, *, returning: bool = False) -> Held:
    """The lease, ours. Raises Locked, naming who holds it, and Refused where the lock VM cannot be used.

    One that nobody holds and that cannot be written, because a task hangs on the lock VM perhaps, is Locked to a night
    and of no use to a return.

    Only under the lock of this machine: a lease that a run of this state directory left behind is then known dead.
    """
    vm, nonce = LockVm(site.vcenter, name), secrets.token_hex(8)
    for number in range(TRIES + 1):
        began = site.passed_s()
        there = vm.look()
        dead = nonces.read() | {nonce}
        holder = rules.holder_of(there, vm.seen.taken_at, dead)
        if holder is not None:
            raise Locked(rules.told(holder), hint="wait for it to end; gpuops rotate status shows it")
        if number == TRIES:
            break
        nonces.keep({nonce, *({there.nonce} if there is not None and there.nonce in dead else ())})
        wanted = rules.taken(there, owner(), nonce, vm.seen.taken_at)
        if vm.write(wanted):
            return Held(vm, wanted, began + rules.TTL_S, site.passed_s, returning=returning)
    unwritten = Refused if returning else Locked
    raise unwritten(f"the lease on {name} could not be written in {TRIES} tries: {vm.why}", hint="try again")


def lease_on(site: Site, name: str, seen: Inventory) -> tuple[rules.Lease | None, str]:
    """The lease that a VM of this name carries, and why it cannot be told."""
    try:
        vm = LockVm(site.vcenter, name, seen)
        found = vm.look()
    except Refused as unusable:
        return None, unusable.message
    return (found if found is not None and found.nonce else None), ""


def owner() -> str:
    """This machine and process, for people."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Lease:
    """What a run has of the lease: `held`, or nothing and why."""

    held: Held | None = None
    unusable: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of a return that went on without it."""
        why = self.unusable or (self.held.without if self.held is not None else "")
        return (f"{why}: this machine's lock alone keeps other runs away",) if why else ()

    def must_be_ours(self) -> None:
        """Raises Locked when it was lost on the way: what was in flight is finished, the rest was not begun."""
        if self.held is not None and self.held.lost is not None:
            raise Locked(f"{self.held.lost}: nothing more was started", hint="gpuops rotate status shows who rotates")


NO_LEASE: Final = Lease()


@contextmanager
def leased(site: Site, name: str | None, *, returning: bool) -> Iterator[Lease]:
    """The lease while a run goes on. A run that was cut off keeps it to its end: what is in flight is still its own.

    A return goes on without a lock VM that cannot be used: no desktop stays away for that.
    """
    if name is None:
        yield NO_LEASE
        return
    try:
        nonces = Nonces(site.state_dir, site.vcenter.uuid, returning=returning)
        held = take(site, name, nonces, returning=returning)
    except Refused as unusable:
        if not returning:
            raise
        yield Lease(unusable=unusable.message)
        return
    try:
        yield Lease(held)
    except Refused:
        _freed(held)
        raise
    _freed(held)


def _freed(held: Held) -> None:
    with suppress(GpuopsError):  # it runs out by itself, and what the run has done stays done
        held.give_back()
