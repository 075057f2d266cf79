"""Which guests are asked, and what all of them together say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Self

from packaging.requirements import InvalidRequirement, Requirement

from gpuops.errors import UsageError, VmNotFound
from gpuops.model.guests.driver import DriverTables
from gpuops.model.guests.guest import GuestReply, GuestSystem, GuestWay
from gpuops.model.nights.ml_queue import NAME, SshDoor
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, is_gpu
from gpuops.plan.guest.answer import MOST_BYTES, read_answer
from gpuops.plan.guest.rows import GuestNeeds, GuestRow, GuestState, not_told, rows_of, unreadable

_WILD: Final = re.compile(r"[*?[]")
_MOST_FRAMEWORKS: Final = 16
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class GuestQuestion:
    """Which guests are asked, what of them, and how."""

    vm: str | None = None
    """A name, or a pattern for names of VMs with a GPU."""
    pool: str | None = None
    wanted: GuestNeeds = field(default_factory=GuestNeeds)
    door: SshDoor | None = None
    """How guests are entered over SSH; None = they are asked through VMware Tools."""

    def checked(self, *, policy: bool) -> Self:
        """The same, where it means something. `policy`: whether one is given. Raises UsageError."""
        if (self.vm is None) == (self.pool is None):
            hint = "--vm ml-07, --vm 'ml-*', or --pool with --policy"
            raise UsageError("say either --vm or --pool", hint=hint)
        if self.pool is not None and not policy:
            raise UsageError("--pool: no policy says which VMs are in it", hint="say --policy FILE too")
        if self.vm is not None and policy:
            raise UsageError("--policy says which VMs are in a pool", hint="say --pool NAME, or leave it out")
        return self


@dataclass(frozen=True, slots=True)
class GuestVerdict:
    """One guest and its rows, in the order of `rows.rows_of`."""

    vm: Vm
    rows: tuple[GuestRow, ...]

    @property
    def ready(self) -> bool:
        return all(row.state is GuestState.PASS for row in self.rows)


@dataclass(frozen=True, slots=True)
class GuestVerdicts:
    """All guests that were asked, by name."""

    inventory: Inventory
    guests: tuple[GuestVerdict, ...]

    @property
    def ready(self) -> bool:
        """Whether every row of every guest passes."""
        return all(each.ready for each in self.guests)


def ssh_door(via: GuestWay, user: str | None, host: str | None, port: int | None) -> SshDoor | None:
    """How guests are entered; None = they are asked through VMware Tools. Raises UsageError."""
    if via is GuestWay.TOOLS:
        if user is not None or host is not None or port is not None:
            raise UsageError("--ssh-user, --ssh-host and --ssh-port are of --via ssh", hint="say it too")
        return None
    if host is not None and NAME not in host:
        raise UsageError(f"--ssh-host: {host[:80]!r} is one address", hint="{vm} stands for the VM's name in it")
    return SshDoor(user or "root", host or NAME, port or 22)


def wanted_framework(text: str) -> Requirement:
    """`torch>=2.3` as a requirement of Python's packages. Raises UsageError."""
    found: Requirement | None = None
    with suppress(InvalidRequirement):
        found = Requirement(text)
    if found is None or found.url or found.extras or found.marker or len(found.name) > _LONGEST_NAME:
        raise UsageError(
            f"--framework: {text[:80]!r} is no framework with a version", hint="write it as torch>=2.3, or torch alone"
        )
    return found


def wanted_frameworks(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Each of them. Raises UsageError for what is none, for one named twice, and for too many."""
    found = tuple(map(wanted_framework, texts))
    if len(found) > _MOST_FRAMEWORKS:
        raise UsageError(f"--framework: {len(found)} of them, {_MOST_FRAMEWORKS} at the most", hint="ask in two calls")
    names = [each.name for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--framework: {twice} is named twice", hint="write both bounds as one: torch>=2.3,<3")
    return found


def meant(inventory: Inventory, question: GuestQuestion, policy: Policy | None) -> tuple[Vm, ...]:
    """The VMs whose guests are asked, by name: the one that is named, all with a GPU that a pattern fits, or a pool.

    Raises UsageError, VmNotFound, VmAmbiguous.
    """
    vm, pool = question.checked(policy=policy is not None).vm, question.pool
    if pool is not None and policy is not None:
        names = [each.name for each in policy.pools]
        if pool not in names:
            raise UsageError(f"there is no pool {pool!r}", hint=f"pools there: {', '.join(names)}")
        found = [
            each for each in inventory.vms.values() if (its := policy.pool_of(each)) is not None and its.name == pool
        ]
    elif vm is not None and _WILD.search(vm) is not None:
        found = [each for each in inventory.vms.values() if fnmatchcase(each.name, vm) and _has_gpu(each)]
        if not found:
            raise VmNotFound(vm, near=())
    else:
        found = [inventory.find_vm(vm or "")]
    return tuple(sorted(found, key=lambda each: (each.name, each.ref)))


def _has_gpu(vm: Vm) -> bool:
    return not vm.template and any(map(is_gpu, vm.devices or ()))


def not_asked(vm: Vm, system: GuestSystem | None, *, tools: bool) -> GuestReply | None:
    """Why this guest need not be asked, for it cannot answer; None = it can. `tools`: it would be asked by them."""
    if vm.power is not PowerState.ON:
        return GuestReply(None, f"the VM is {_word(vm)}", "power it on")
    if tools and vm.tools_running is not True:
        return GuestReply(None, "VMware Tools do not run in it, or do not tell", "start VMware Tools, or say --via ssh")
    if system is None:
        return GuestReply(None, "which system it is, vCenter does not tell", "set the guest OS of the VM")
    return None


def _word(vm: Vm) -> str:
    return {PowerState.OFF: "off", PowerState.SUSPENDED: "suspended"}.get(vm.power or PowerState.ON, "unreadable")


def judged(
    inventory: Inventory,
    vms: Sequence[Vm],
    reply_of: Callable[[Vm], GuestReply],
    wanted: GuestNeeds,
    tables: DriverTables,
) -> GuestVerdicts:
    """The verdicts on what these guests told. `inventory` has the settings of their hosts."""
    return GuestVerdicts(inventory, tuple(_judged(inventory, vm, reply_of(vm), wanted, tables) for vm in vms))


def _judged(inventory: Inventory, vm: Vm, reply: GuestReply, wanted: GuestNeeds, tables: DriverTables) -> GuestVerdict:
    if reply.text is None:
        return GuestVerdict(vm, (not_told(reply),))
    try:
        if len(reply.text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        answer = read_answer(reply.text)
    except ValueError as error:
        return GuestVerdict(vm, (unreadable(str(error)),))
    host = inventory.hosts.get(vm.host or "")
    return GuestVerdict(vm, rows_of(vm, host, answer, reply, wanted, tables))


def counts(found: GuestVerdicts) -> Mapping[GuestState, int]:
    """How many guests are ready, how many fail in a row, and how many are only not known to be ready."""
    states = [
        GuestState.PASS
        if each.ready
        else GuestState.FAIL
        if any(row.state is GuestState.FAIL for row in each.rows)
        else GuestState.UNKNOWN
        for each in found.guests
    ]
    return {state: states.count(state) for state in GuestState}
