"""Plans the changes of all settings that differ from a site file, as requests of the core's commands on one snapshot.

`SiteHosts` and `SiteVms` are requests like `SetMode` and `Attach`: the core's executors plan them again under the lock,
because vCenter may have changed since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar

from gpuops.errors import UsageError
from gpuops.extras.declare.wishes import (
    HostWish,
    SiteDifference,
    VmWish,
    attach_request,
    device_request,
    host_differences,
    vm_differences,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import HostStep, SetAttribute, SetVmDrs, Step
from gpuops.plan.hosts.graphics.device_mode_changes import host_after
from gpuops.plan.hosts.graphics.mig_mode import SetMig
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import HostRequest
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.vm.several import Change, SeveralVms

Gpus = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteHosts:
    """The host settings of a site file that differ from a snapshot."""

    run_kind: ClassVar[str] = "sitehosts"

    wishes: tuple[HostWish, ...]
    reboots_only: bool = False
    """Whether to plan only one step for each host that waits for a reboot. A rolling change takes one step for a host,
    and the reboot brings all settings of the host into force."""

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Return the refs of the hosts to change, as far as they still exist."""
        return tuple(wish.ref for wish in self.wishes if wish.ref in inventory.hosts)

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the plan of all hosts, or a refusal with every reason if one host cannot be changed."""
        plans = [self._plan_host(wish, inventory, catalog) for wish in self.wishes if wish.ref in inventory.hosts]
        rejections = tuple(reason for plan in plans for reason in plan.rejections)
        steps = tuple(step for plan in plans for step in (plan.steps or plan.withheld))
        if rejections:
            return refuse(*rejections, withheld=steps)
        due = tuple(step for plan in plans for step in plan.due)
        if self.reboots_only:
            waiting = {step.host for plan in plans for step in plan.steps if step.host in plan.reboots}
            due = last_step_of_each_host((*(step for step in steps if step.host in waiting), *due))
            return Plan(due=due, warnings=tuple(line for plan in plans for line in plan.warnings))
        return Plan(
            waves=(Wave("hosts", steps),) if steps else (),
            warnings=tuple(dict.fromkeys(line for plan in plans for line in plan.warnings)),
            because=tuple(dict.fromkeys(line for plan in plans for line in plan.because)),
            due=due,
            reboots=frozenset().union(*(plan.reboots for plan in plans)),
        )

    def _plan_host(self, wish: HostWish, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the plan of one host. Each request is planned on the host as the earlier steps leave it."""
        host = inventory.hosts[wish.ref]
        parts: list[Plan[HostStep]] = []
        for request in host_requests(wish, host, tuple(host_differences(wish, host, catalog))):
            try:
                plan = request.plan(inventory, catalog)
            except UsageError as error:  # for example MIG mode without a host shell
                plan = refuse(Rejection(wish.name, error.message, hint=error.hint))
            parts.append(plan)
            for step in plan.steps:
                host = host_after(inventory.hosts[wish.ref], step)
                inventory = inventory.with_hosts([host])
        return Plan(
            waves=tuple(wave for plan in parts for wave in plan.waves),
            rejections=tuple(reason for plan in parts for reason in plan.rejections),
            withheld=tuple(step for plan in parts for step in (plan.withheld or plan.steps)),
            warnings=tuple(line for plan in parts for line in plan.warnings),
            because=tuple(line for plan in parts if plan.steps for line in plan.because),
            due=tuple(step for plan in parts for step in plan.due),
            reboots=frozenset().union(*(plan.reboots for plan in parts)),
        )


def last_step_of_each_host(steps: Iterable[HostStep]) -> tuple[HostStep, ...]:
    """Return the last step of each host."""
    return tuple({step.host: step for step in steps}.values())


def host_requests(wish: HostWish, host: Host, differences: Sequence[SiteDifference]) -> Iterator[HostRequest]:
    """Yield the requests that make a host as the file says, in the order in which they must be done.

    DirectPath I/O is switched off first, because only then the GPUs have a graphics type, and switched on last.
    """
    differing = {(difference.key, difference.gpu) for difference in differences}  # key, and GPU or None
    yield from _passthrough_requests(wish, host, differing, on=False)
    yield from _mode_requests(wish, differing)
    for on in (False, True):
        gpus = _gpus_to_set(wish, differing, "mig", on)
        if gpus:
            yield SetMig(on, gpus, wish.ref)
    for scheduler, gpus in _grouped(wish, differing, ("scheduler",)):
        request = scheduler["scheduler"]
        assert isinstance(request, SetScheduler)
        yield replace(request, gpu=gpus, host=wish.ref)
    yield from _passthrough_requests(wish, host, differing, on=True)


def _mode_requests(wish: HostWish, differing: Collection[tuple[str, PciAddress | None]]) -> Iterator[SetMode]:
    """Yield the requests that set graphics types and vGPU modes of GPUs, and the graphics defaults of the host."""
    host_options: dict[str, Any] = {
        option: wish.keys[key]
        for key, option in (("default_graphics", "default_type"), ("assignment", "assignment"))
        if (key, None) in differing
    }
    for settings, gpus in _grouped(wish, differing, ("graphics", "vgpu_mode")):
        gpu_options: dict[str, Any] = {
            "type" if key == "graphics" else key: setting for key, setting in settings.items()
        }
        yield SetMode(**host_options, **gpu_options, gpu=gpus, host=wish.ref)
        host_options = {}  # the first request sets the settings of the host too
    if host_options:
        yield SetMode(**host_options, host=wish.ref)


def _passthrough_requests(
    wish: HostWish, host: Host, differing: Collection[tuple[str, PciAddress | None]], *, on: bool
) -> Iterator[SetPassthrough]:
    """Yield the requests that switch DirectPath I/O of GPUs `on` or off, with their labels.

    A GPU of which only the label differs is in the request of its present state.
    """
    states = (host.settings or HostSettings()).passthrough or ()
    switched_on = {str(state.address) for state in states if state.enabled}
    for settings, gpus in _grouped(wish, differing, ("passthrough", "label")):
        chosen = tuple(gpu for gpu in gpus if settings.get("passthrough", gpu in switched_on) is on)
        if chosen:
            label = settings.get("label")
            yield SetPassthrough(on, chosen, None if label is None else str(label), wish.ref)


def _grouped(
    wish: HostWish, differing: Collection[tuple[str, PciAddress | None]], keys: tuple[str, ...]
) -> list[tuple[Mapping[str, object], Gpus]]:
    """Return groups of GPUs on which at least one of the keys differs, by the values that these keys get."""
    groups: list[tuple[dict[str, object], list[str]]] = []
    for address, gpu_wishes in wish.gpus.items():
        settings = {key: gpu_wishes[key].setting for key in keys if (key, address) in differing}
        group = next((gpus for group_settings, gpus in groups if group_settings == settings), None)
        if group is not None:
            group.append(str(address))
        elif settings:
            groups.append((settings, [str(address)]))
    return [(settings, tuple(gpus)) for settings, gpus in groups]


def _gpus_to_set(
    wish: HostWish, differing: Collection[tuple[str, PciAddress | None]], key: str, setting: object
) -> Gpus:
    return tuple(
        str(address)
        for address, wishes in wish.gpus.items()
        if (key, address) in differing and wishes[key].setting == setting
    )


@dataclass(frozen=True, slots=True)
class SiteVms:
    """The VM settings of a site file that differ from a snapshot."""

    run_kind: ClassVar[str] = "sitevms"

    wishes: tuple[VmWish, ...]

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the wished VMs on hosts without GPUs: the bulk read leaves their devices out."""
        return tuple(wish.ref for wish in self.wishes if wish.ref in inventory.vms and _is_unread(wish, inventory))

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the hosts whose DirectPath devices the plan needs."""
        refs: dict[str, None] = {}
        for wish in self.wishes:
            if wish.ref in inventory.vms and wish.devices is not None and wish.devices.device:
                vm = inventory.vms[wish.ref]
                refs |= dict.fromkeys(attach_request(wish.devices, vm, None).config_targets(inventory))
        return tuple(refs)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan of all VMs, or a refusal with every reason if one VM cannot be changed."""
        requests: list[Change] = []
        quick_steps: list[Step] = []
        rejections: list[Rejection] = []
        for wish in self.wishes:
            vm = inventory.vms.get(wish.ref)
            if vm is None:
                continue
            try:
                differences = tuple(vm_differences(wish, vm, inventory, catalog, now))
                request = device_request(wish.devices, vm, inventory, catalog) if wish.devices is not None else None
            except UsageError as error:
                rejections.append(Rejection(vm.name, error.message, hint=error.hint))
                continue
            keys = {difference.key for difference in differences}
            marks = {difference.mark for difference in differences}
            if request is not None:
                requests.append(request)
            # the VM has the devices, but is not bound to the required node: the same request binds it
            elif "numa" in keys and wish.devices is not None:
                requests.append(attach_request(wish.devices, vm, None))
            if "drs" in keys and wish.drs is not None:
                quick_steps.append(SetVmDrs(vm.ref, wish.drs))
            quick_steps += [
                SetAttribute(vm.ref, name, mark.value or "") for name, mark in wish.marks.items() if name in marks
            ]
        plan = SeveralVms(tuple(requests)).plan(inventory, catalog, now)
        if rejections or plan.rejections:
            withheld = (*(plan.withheld or plan.steps), *quick_steps)
            return refuse(*rejections, *plan.rejections, withheld=withheld)
        quick = (Wave("marks and DRS overrides", tuple(quick_steps)),) if quick_steps else ()
        return replace(plan, waves=(*quick, *plan.waves))


def _is_unread(wish: VmWish, inventory: Inventory) -> bool:
    return wish.devices is not None and inventory.vms[wish.ref].devices is None
