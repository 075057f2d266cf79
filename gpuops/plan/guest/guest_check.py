"""Selects the guests that `gpuops guest check` checks, and combines the results of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Self

from packaging.requirements import InvalidRequirement, Requirement

from gpuops.errors import UsageError, VmNotFound
from gpuops.model.guests.guest import DriverTables, GuestReply, GuestSystem, GuestWay
from gpuops.model.nights.ml_queue import NAME, SshDoor
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, is_gpu
from gpuops.plan.guest.check_output import MOST_BYTES, read_answer
from gpuops.plan.guest.rows import GuestNeeds, GuestRow, GuestState, guest_rows, unanswered_row, unreadable_row

_WILD: Final = re.compile(r"[*?[]")
_MOST_FRAMEWORKS: Final = 16
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class GuestQuestion:
    """The guests to check, their requirements, and how gpuops reaches them."""

    vm: str | None = None
    """A name, or a pattern for names of VMs with a GPU."""
    pool: str | None = None
    wanted: GuestNeeds = field(default_factory=GuestNeeds)
    door: SshDoor | None = None
    """SSH login of the guests; None = VMware Tools run the check."""

    def checked(self, *, policy: bool) -> Self:
        """Return the question if its options fit together. `policy`: whether --policy is given. Raises UsageError."""
        if (self.vm is None) == (self.pool is None):
            hint = "for example --vm ml-07, --vm 'ml-*', or --pool ml with --policy FILE"
            raise UsageError("exactly one of --vm and --pool is needed", hint=hint)
        if self.pool is not None and not policy:
            raise UsageError("--pool needs the policy that defines the pool", hint="add --policy FILE")
        if self.vm is not None and policy:
            raise UsageError("--policy is only for --pool", hint="replace --vm by --pool NAME, or remove --policy")
        return self


@dataclass(frozen=True, slots=True)
class GuestVerdict:
    """The results of one guest, in the order of `guest_rows`."""

    vm: Vm
    rows: tuple[GuestRow, ...]

    @property
    def ready(self) -> bool:
        return all(row.state is GuestState.PASS for row in self.rows)


@dataclass(frozen=True, slots=True)
class GuestVerdicts:
    """The verdicts on all guests, by name."""

    inventory: Inventory
    guests: tuple[GuestVerdict, ...]

    @property
    def ready(self) -> bool:
        """Whether every row of every guest passes."""
        return all(guest.ready for guest in self.guests)


def ssh_door(via: GuestWay, user: str | None, host: str | None, port: int | None) -> SshDoor | None:
    """Return the SSH login of the guests; None = VMware Tools run the check. Raises UsageError."""
    if via is GuestWay.TOOLS:
        if user is not None or host is not None or port is not None:
            raise UsageError("--ssh-user, --ssh-host and --ssh-port need --via ssh", hint="add --via ssh")
        return None
    if host is not None and NAME not in host:
        raise UsageError(f"--ssh-host: {host[:80]!r} is a single address", hint="write {vm} in it for the VM's name")
    return SshDoor(user or "root", host or NAME, port or 22)


def parse_framework(text: str) -> Requirement:
    """Parse a requirement of a Python package, such as `torch>=2.3`. Raises UsageError."""
    requirement: Requirement | None = None
    with suppress(InvalidRequirement):
        requirement = Requirement(text)
    if (
        requirement is None
        or requirement.url
        or requirement.extras
        or requirement.marker
        or len(requirement.name) > _LONGEST_NAME
    ):
        raise UsageError(
            f"--framework: {text[:80]!r} is not a package with a version", hint="write it as torch>=2.3, or torch alone"
        )
    return requirement


def parse_frameworks(texts: Sequence[str]) -> tuple[Requirement, ...]:
    """Parse the requirements. Raises UsageError for an invalid one, a framework named twice, and too many of them."""
    requirements = tuple(map(parse_framework, texts))
    if len(requirements) > _MOST_FRAMEWORKS:
        raise UsageError(
            f"--framework is given {len(requirements)} times, at most {_MOST_FRAMEWORKS} are allowed",
            hint="check the others in a second call",
        )
    names = [requirement.name for requirement in requirements]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--framework: {repeated} is named twice", hint="write both bounds as one: torch>=2.3,<3")
    return requirements


def select_guests(inventory: Inventory, question: GuestQuestion, policy: Policy | None) -> tuple[Vm, ...]:
    """Return the VMs of the guests to check, by name: the named one, all with a GPU that match a pattern, or a pool.

    Raises UsageError, VmNotFound, VmAmbiguous.
    """
    vm, pool = question.checked(policy=policy is not None).vm, question.pool
    if pool is not None and policy is not None:
        names = [policy_pool.name for policy_pool in policy.pools]
        if pool not in names:
            raise UsageError(f"there is no pool {pool!r}", hint=f"pools of the policy: {', '.join(names)}")
        vms = [
            candidate
            for candidate in inventory.vms.values()
            if (vm_pool := policy.pool_of(candidate)) is not None and vm_pool.name == pool
        ]
    elif vm is not None and _WILD.search(vm) is not None:
        all_vms = inventory.vms.values()
        vms = [candidate for candidate in all_vms if fnmatchcase(candidate.name, vm) and _has_gpu(candidate)]
        if not vms:
            raise VmNotFound(vm, near=())
    else:
        vms = [inventory.find_vm(vm or "")]
    return tuple(sorted(vms, key=lambda selected: (selected.name, selected.ref)))


def _has_gpu(vm: Vm) -> bool:
    return not vm.template and any(map(is_gpu, vm.devices or ()))


def check_reachable(vm: Vm, system: GuestSystem | None, *, tools: bool) -> GuestReply | None:
    """Return why this guest cannot answer, or None if it may. `tools`: whether VMware Tools run the check."""
    if vm.power is not PowerState.ON:
        return GuestReply(None, f"the VM is {_power_word(vm)}", "power it on")
    if tools and vm.tools_running is not True:
        why = "VMware Tools do not run in it, or their state is unknown"
        return GuestReply(None, why, "start VMware Tools, or use --via ssh")
    if system is None:
        return GuestReply(None, "vCenter does not report its guest OS", "set the guest OS of the VM")
    return None


def _power_word(vm: Vm) -> str:
    return {PowerState.OFF: "off", PowerState.SUSPENDED: "suspended"}.get(vm.power or PowerState.ON, "unreadable")


def judge_guests(
    inventory: Inventory,
    vms: Sequence[Vm],
    reply_of: Callable[[Vm], GuestReply],
    needs: GuestNeeds,
    tables: DriverTables,
) -> GuestVerdicts:
    """Return the verdicts on the replies of these guests. `inventory` has the settings of their hosts."""
    return GuestVerdicts(inventory, tuple(_judge_guest(inventory, vm, reply_of(vm), needs, tables) for vm in vms))


def _judge_guest(
    inventory: Inventory, vm: Vm, reply: GuestReply, needs: GuestNeeds, tables: DriverTables
) -> GuestVerdict:
    """Return the verdict on one guest; a reply that is missing or cannot be parsed gives one row."""
    if reply.text is None:
        return GuestVerdict(vm, (unanswered_row(reply),))
    try:
        if len(reply.text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        answer = read_answer(reply.text)
    except ValueError as error:
        return GuestVerdict(vm, (unreadable_row(str(error)),))
    host = inventory.hosts.get(vm.host or "")
    return GuestVerdict(vm, guest_rows(vm, host, answer, reply, needs, tables))


def count_states(verdicts: GuestVerdicts) -> Mapping[GuestState, int]:
    """Return how many guests are ready, how many fail a check, and for how many neither is known."""
    counts = dict.fromkeys(GuestState, 0)
    for guest in verdicts.guests:
        fails = any(row.state is GuestState.FAIL for row in guest.rows)
        counts[GuestState.PASS if guest.ready else GuestState.FAIL if fails else GuestState.UNKNOWN] += 1
    return counts
