"""Makes one plan of the settings to change on several hosts; the requests about hosts call it.

Refused on one host, nothing is done on any. `combine_parts` makes one plan of what each host comes to;
`kept_as_they_are` names the VMs that forbid a change of their host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.device_mode import ConfigureImpact, Impacts
from gpuops.model.nights.night_record import parse_marker
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Plan, Rejection, Wave
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureModes, HostStep


class HostRequest(Protocol):
    """A frozen dataclass whose fields are the options of a verb on hosts."""

    run_kind: ClassVar[str]
    """What journals call a run that carries it out. It is stored, and never changes."""

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the hosts whose settings the plan needs. Raises UsageError for a name that is not there."""
        ...

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the change wanted on this snapshot. Raises UsageError for a request that means nothing."""
        ...


REBOOT: Final = (
    "not in force before a reboot of {}: for each host, move or shut down its VMs, put it in maintenance mode and "
    "reboot it; then gpuops host {} show"
)


UNTOLD: Final = (
    "vCenter tells only when it is set whether it is in force at once, or takes maintenance mode or a reboot of {}; "
    "then gpuops host {} show"
)
MAINTENANCE: Final = (
    "not in force before maintenance mode of {}: for each host, move or shut down its VMs and put it in maintenance "
    "mode; then gpuops host {} show"
)


def tells_impact(step: HostStep) -> bool:
    """Return whether vCenter says, when it sets this, what that takes before it is in force."""
    return isinstance(step, ConfigureModes)


def impact_words(impacts: Impacts) -> str:
    """Return what vCenter says that a change takes, in words."""
    if ConfigureImpact.REBOOT in impacts:
        return "vCenter: takes a reboot"
    return (
        "vCenter: takes maintenance mode"
        if ConfigureImpact.MAINTENANCE_MODE in impacts
        else "vCenter: in force at once"
    )


def left_to_do(
    plan: Plan[HostStep], impacts: Mapping[str, Impacts], inventory: Inventory, noun: str
) -> tuple[str, ...]:
    """Return what is left to do after a plan. `impacts`: what vCenter reported for each host (ref)."""
    hosts = [step.host for step in plan.steps if step.host in plan.reboots]
    asking = {step.host for step in plan.steps if tells_impact(step)}
    by_reboot, by_maintenance = [], []
    for ref in hosts:
        if (
            ref not in asking or ref not in impacts or ConfigureImpact.REBOOT in impacts[ref]
        ):  # a reboot is enough for all
            by_reboot.append(inventory.hosts[ref].name)
        elif ConfigureImpact.MAINTENANCE_MODE in impacts[ref]:
            by_maintenance.append(inventory.hosts[ref].name)
    texts = ((REBOOT, by_reboot), (MAINTENANCE, by_maintenance))
    return tuple(text.format(", ".join(names), noun) for text, names in texts if names)


@dataclass(frozen=True, slots=True)
class HostPart:
    """What one host comes to."""

    name: str
    rejections: tuple[Rejection, ...] = ()
    step: HostStep | None = None
    reboots: bool = True
    """Whether the step is not in force before a reboot."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    due: HostStep | None = None
    """What is configured already and waits for a reboot; None = nothing does, or `step` changes it."""


def hosts_meant(
    verb: str, host: str | None, cluster: str | None, inventory: Inventory, *, every: bool = False
) -> tuple[Host, ...]:
    """Return the hosts affected by a change: those with GPUs, or all of them if `every` is set.

    Raises UsageError if neither a host nor a cluster is named, HostNotFound.
    """
    if host is None and cluster is None:
        raise UsageError(f"{verb} needs --host or --cluster", hint="--host '*' means every host with GPUs")
    scope = Scope(cluster=cluster, host=host)
    scope.check(inventory)
    if every:
        return tuple(host for host in inventory.hosts.values() if scope.outside(host, inventory) is None)
    return scope.hosts(inventory)


def combine_parts(parts: Sequence[HostPart], noun: str, notes: Iterable[str] = ()) -> Plan[HostStep]:
    """Return the plan of all hosts; `noun` names the command that shows what came of it."""
    steps = tuple(part.step for part in parts if part.step is not None)
    rejections = tuple(rejection for part in parts for rejection in part.rejections)
    because = tuple(text for part in parts for text in part.because)
    if rejections:
        return Plan(rejections=rejections, withheld=steps)
    due = tuple(part.due for part in parts if part.due is not None)
    if not steps:
        return Plan(because=because, due=due)
    names = [part.name for part in parts if part.reboots and part.step is not None and not tells_impact(part.step)]
    names_by_vcenter = [part.name for part in parts if part.step is not None and tells_impact(part.step)]
    return Plan(
        waves=(Wave("hosts", steps),),
        warnings=tuple(text for part in parts for text in part.warnings),
        because=(*because, *notes),
        afterwards=(
            *((REBOOT.format(", ".join(names), noun),) if names else ()),
            *((UNTOLD.format(", ".join(names_by_vcenter), noun),) if names_by_vcenter else ()),
        ),
        due=due,
        reboots=frozenset(part.step.host for part in parts if part.step is not None and part.reboots),
    )


def kept_as_they_are(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each VM that forbids changing the host's driver, scheduler or graphics mode.

    Between suspend and resume of a vGPU they must not change (NVIDIA vGPU docs, suspend and resume on VMware vSphere);
    and what a night has started or suspended there goes back in the morning to the host it knows.
    """
    for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
        marker = next((marker_found for text in vm.attributes.values() if (marker_found := parse_marker(text))), None)
        if marker is not None:
            hint = "gpuops rotate day brings it back; change the host then"
            yield Rejection(host.name, f"{vm.name} is in the rotation of night {marker.night}", hint=hint)
        elif vm.power is PowerState.SUSPENDED and may_hold_vgpu(vm):
            detail = "its devices cannot be read" if vm.devices is None else "with a vGPU"
            hint = f"resume {vm.name} or shut it down; change the host then"
            yield Rejection(host.name, f"{vm.name} is suspended there, {detail}", hint=hint)


def may_hold_vgpu(vm: Vm) -> bool:
    """Return whether the VM has a vGPU, or may have one."""
    return vm.devices is None or bool(vm.vgpus)
