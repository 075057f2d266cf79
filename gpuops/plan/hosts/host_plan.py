"""Combines the changes of several hosts into one plan. If one host is refused, nothing is done on any.

The requests of `scheduler` and `graphics` call `select_hosts` and `combine_parts`.
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
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureModes, HostStep


class HostRequest(Protocol):
    """A command that changes hosts: a frozen dataclass whose fields are its options."""

    run_kind: ClassVar[str]
    """The name of its runs in journals. It is stored, and never changes."""

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the hosts whose settings the plan needs. Raises UsageError for an unknown name."""
        ...

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the plan for this snapshot. Raises UsageError for options that do not fit together."""
        ...


REBOOT: Final = (
    "takes effect after a reboot of {}: for each host, move or shut down its VMs, put it into maintenance mode and "
    "reboot it; then check with gpuops host {} show"
)
IMPACT_UNKNOWN: Final = (
    "vCenter reports only when the mode is set whether it takes effect at once, or needs maintenance mode or a reboot "
    "of {}; then check with gpuops host {} show"
)
MAINTENANCE: Final = (
    "takes effect after maintenance mode of {}: for each host, move or shut down its VMs and put it into maintenance "
    "mode; then check with gpuops host {} show"
)


def reports_impact(step: HostStep) -> bool:
    """Return whether vCenter reports, when it carries out the step, if that needs maintenance mode or a reboot."""
    return isinstance(step, ConfigureModes)


def describe_impact(impacts: Impacts) -> str:
    """Return what the change needs to take effect, as vCenter reports it."""
    if ConfigureImpact.REBOOT in impacts:
        return "vCenter: needs a reboot"
    needs_maintenance = ConfigureImpact.MAINTENANCE_MODE in impacts
    return "vCenter: needs maintenance mode" if needs_maintenance else "vCenter: in effect at once"


def remaining_work(
    plan: Plan[HostStep], impacts: Mapping[str, Impacts], inventory: Inventory, noun: str
) -> tuple[str, ...]:
    """Return what an admin must do after the plan was carried out.

    `impacts`: by host (ref) what vCenter reported; `noun`: the settings, as in `gpuops host mode show`.
    """
    reporting_hosts = {step.host for step in plan.steps if reports_impact(step)}
    by_reboot, by_maintenance = [], []
    # If a host reports no impact, it needs a reboot, as planned.
    for ref in (step.host for step in plan.steps if step.host in plan.reboots):
        if ref not in reporting_hosts or ref not in impacts or ConfigureImpact.REBOOT in impacts[ref]:
            by_reboot.append(inventory.hosts[ref].name)
        elif ConfigureImpact.MAINTENANCE_MODE in impacts[ref]:
            by_maintenance.append(inventory.hosts[ref].name)
    texts = ((REBOOT, by_reboot), (MAINTENANCE, by_maintenance))
    return tuple(text.format(", ".join(names), noun) for text, names in texts if names)


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host's part of a plan: the step, or the reasons against it."""

    name: str
    rejections: tuple[Rejection, ...] = ()
    step: HostStep | None = None
    reboots: bool = True
    """Whether the step takes effect only after a reboot."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    due: HostStep | None = None
    """An earlier step that still waits for a reboot; None if no step waits, or if `step` replaces it."""


def select_hosts(
    verb: str, host: str | None, cluster: str | None, inventory: Inventory, *, include_all: bool = False
) -> tuple[Host, ...]:
    """Return the hosts affected by a change: those with GPUs, or all of them if `include_all` is set.

    Raises UsageError if neither a host nor a cluster is named, HostNotFound.
    """
    if host is None and cluster is None:
        raise UsageError(f"{verb} needs --host or --cluster", hint="add --host '*' for every host with GPUs")
    scope = Scope(cluster=cluster, host=host)
    scope.check(inventory)
    if include_all:
        return tuple(host for host in inventory.hosts.values() if scope.outside(host, inventory) is None)
    return scope.hosts(inventory)


def combine_parts(parts: Sequence[HostPart], noun: str, notes: Iterable[str] = ()) -> Plan[HostStep]:
    """Return the plan of all hosts. `noun`: the settings, as in `gpuops host mode show`."""
    steps = tuple(part.step for part in parts if part.step is not None)
    rejections = tuple(rejection for part in parts for rejection in part.rejections)
    because = tuple(text for part in parts for text in part.because)
    if rejections:
        return Plan(rejections=rejections, withheld=steps)
    due = tuple(part.due for part in parts if part.due is not None)
    if not steps:
        return Plan(because=because, due=due)
    to_reboot: list[str] = []
    impact_unknown: list[str] = []
    reboots: set[str] = set()
    for part in parts:
        if part.step is None:
            continue
        if reports_impact(part.step):  # whether a reboot is needed is only known when the step is sent
            impact_unknown.append(part.name)
        elif part.reboots:
            to_reboot.append(part.name)
        if part.reboots:
            reboots.add(part.step.host)
    texts = ((REBOOT, to_reboot), (IMPACT_UNKNOWN, impact_unknown))
    return Plan(
        waves=(Wave("hosts", steps),),
        warnings=tuple(text for part in parts for text in part.warnings),
        because=(*because, *notes),
        afterwards=tuple(text.format(", ".join(names), noun) for text, names in texts if names),
        due=due,
        reboots=frozenset(reboots),
    )


def vms_forbidding_change(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each VM that forbids changing the host's driver, scheduler or graphics mode.

    These must not change between suspend and resume of a vGPU (NVIDIA vGPU docs, suspend and resume on VMware vSphere).
    VMs that `rotate night` started or suspended return to this host in the morning, and need it as it was.
    """
    for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
        markers = [marker for text in vm.attributes.values() if (marker := parse_marker(text)) is not None]
        if markers:
            hint = "run gpuops rotate day first, which brings the VM back"
            yield Rejection(host.name, f"{vm.name} is in the rotation of night {markers[0].night}", hint=hint)
        elif vm.power is PowerState.SUSPENDED and may_hold_vgpu(vm):
            detail = "and its devices cannot be read" if vm.devices is None else "with a vGPU"
            hint = f"resume {vm.name} or shut it down first"
            yield Rejection(host.name, f"{vm.name} is suspended on it {detail}", hint=hint)


def may_hold_vgpu(vm: Vm) -> bool:
    """Return whether the VM has a vGPU, or may have one."""
    return vm.devices is None or bool(vm.vgpus)
