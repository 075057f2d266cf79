"""Attachment: a goal for a VM becomes a plan: a place, one reconfigure, and the stop, move and start around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.device_signature import gpu_names
from gpuops.plan.core.plan import Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, RelocateVm, Step
from gpuops.plan.devices.goal import Goal
from gpuops.plan.devices.pins import kept_pins
from gpuops.plan.devices.requested import with_backings
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.devices.settings import Fitting, change_of, warnings_of
from gpuops.plan.placement.explain import may_be_remote, remote_memory, warn_of_displaced
from gpuops.plan.placement.ha_headroom import Headroom
from gpuops.plan.placement.multi_node import nodes_needed, place_near, share_of_vm
from gpuops.plan.placement.nodes import AFFINITY_KEY, short_beside
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.wanted import PinPolicy, Placement, Wanted, demands_of, pins_of
from gpuops.plan.vm.power import PowerPolicy, power_moves
from gpuops.plan.vm.target_hosts import elsewhere


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a snapshot: a VM, the devices it is to have, where it may be, and how far gpuops may go."""

    vm: Vm
    goal: Goal
    hosts: tuple[Host, ...]
    numa: NumaPolicy
    pin: PinPolicy
    power: PowerPolicy
    inventory: Inventory
    catalog: Catalog

    @property
    def wanted(self) -> Wanted:
        demands = demands_of(self.goal.devices, kept_pins(self.vm, self.goal))
        hosts, grouped = tuple(host.ref for host in self.hosts), self.goal.device_group is not None
        return Wanted(self.vm, demands, hosts, self.numa, self.pin, grouped=grouped)


def is_there(ask: Ask) -> bool:
    """Whether the VM has all of it already, on a host where it may be. One that runs proves its settings by running."""
    host = next((host for host in ask.hosts if host.ref == ask.vm.host), None)
    if host is None or not ask.goal.unchanged:
        return False
    if ask.numa is NumaPolicy.REQUIRED and not _is_bound(ask, host):
        return False
    settings = Fitting(ask.vm, ask.goal, Placement(host), NumaPolicy.NONE, ask.catalog)
    return ask.vm.power is PowerState.ON or change_of(settings).empty


def left_as_it_is(ask: Ask, blockers: tuple[Rejection, ...]) -> Plan:
    """Nothing to change; at most the VM is started, where it is to run."""
    because = (f"{ask.vm.name} has {gpu_names(ask.vm)} already",)
    if ask.power is not PowerPolicy.ON or ask.vm.power is PowerState.ON:
        return Plan(because=because)
    if ask.vm.power is not PowerState.OFF:
        return Plan(because=(*because, f"it is {ask.vm.power or 'in an unreadable power state'}, and left so"))
    placement = place(replace(ask.wanted, hosts=(ask.vm.host or "",)), ask.inventory, ask.catalog)
    if blockers or not isinstance(placement, Placement):
        return refuse(*blockers, *(() if isinstance(placement, Placement) else placement))
    start = Wave(f"start {ask.vm.name}", (PowerOnVm(ask.vm.ref, ask.vm.host),))
    return Plan((start,), because=because, warnings=placement.doubts, choices=placement.choices)


def planned(ask: Ask, blockers: tuple[Rejection, ...]) -> Plan:
    """The plan that brings the VM its devices, or every reason against it."""
    host = next(iter(ask.hosts), None)
    ask, kept_free = _with_headroom(ask)
    placement = place_near(ask.wanted, ask.inventory, ask.catalog) if ask.hosts else ()
    if not isinstance(placement, Placement):
        against, _ = findings(_case(ask, host))
        return refuse(*blockers, *against, *kept_free, *placement, *_elsewhere(ask), withheld=_wished(ask, host))
    goal = with_backings(ask.goal, placement.host)
    against, warnings = findings(_case(ask, placement.host))
    if not isinstance(goal, Goal):
        return refuse(*blockers, *against, *goal, choices=placement.choices, withheld=_wished(ask, placement.host))
    if blockers or against:
        return refuse(*blockers, *against, choices=placement.choices, withheld=_wished(ask, placement.host))
    return _waves(ask, Fitting(ask.vm, goal, placement, ask.numa, ask.catalog), warnings)


def _with_headroom(ask: Ask) -> tuple[Ask, tuple[Rejection, ...]]:
    """The same with only the hosts on which HA lets the VM start, and what it says of the others."""
    headroom = Headroom(ask.vm, ask.inventory)
    refused = {host.ref: found for host in ask.hosts if (found := headroom.refusal(host)) is not None}
    hosts = tuple(host for host in ask.hosts if host.ref not in refused)
    return replace(ask, hosts=hosts), tuple(dict.fromkeys(refused.values()))


def _wished(ask: Ask, host: Host | None) -> tuple[Step, ...]:
    """The steps that would be taken on that host if nothing spoke against it."""
    if host is None:
        return ()
    fitting = Fitting(ask.vm, ask.goal, Placement(host), NumaPolicy.NONE, ask.catalog)
    power = power_moves(ask.vm, ask.power, host.ref)
    return (*_steps(power.before), *_steps(_move(fitting)), *_steps(_edit(fitting)), *_steps(power.after))


def _steps(waves: tuple[Wave, ...]) -> Iterator[Step]:
    return (step for wave in waves for step in wave.steps)


def _move(fitting: Fitting) -> tuple[Wave, ...]:
    vm, host = fitting.vm, fitting.placement.host
    return (Wave(f"move {vm.name}", (RelocateVm(vm.ref, host.ref),)),) if fitting.moved else ()


def _edit(fitting: Fitting) -> tuple[Wave, ...]:
    vm, change = fitting.vm, change_of(fitting)
    return () if change.empty else (Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),)),)


def _waves(ask: Ask, fitting: Fitting, warnings: tuple[str, ...]) -> Plan:
    vm, placement = ask.vm, fitting.placement
    power = power_moves(vm, ask.power, placement.host.ref)
    move = _move(fitting)
    return Plan(
        waves=(*power.before, *move, *_edit(fitting), *power.after),
        warnings=(
            *warnings,
            *placement.doubts,
            *warnings_of(fitting),
            *remote_memory(ask.vm, ask.numa, placement, ask.inventory),
            *may_be_remote(ask.vm, ask.numa, placement, ask.inventory),
            *_competitors(ask, fitting),
            *power.warnings,
        ),
        choices=placement.choices,
        disruptive=bool(power.before or move),
    )


def _case(ask: Ask, host: Host | None) -> Case:
    return Case(ask.vm, ask.goal.devices, ask.goal.device_group is not None, host, ask.catalog)


def _is_bound(ask: Ask, host: Host) -> bool:
    """Whether the VM is bound to as few NUMA nodes of the host as hold it, and its pinned vGPUs are on them."""
    there = (ask.vm.extra_config or {}).get(AFFINITY_KEY, "").split(",")
    nodes = [node for node in host.numa_nodes if str(node.id) in there]
    needed = nodes_needed(ask.vm, () if ask.wanted.grouped else ask.wanted.demands, host, ask.catalog)
    if len(nodes) != len(there) or len(nodes) != needed:
        return False
    part = share_of_vm(ask.vm, len(nodes))
    if any(short_beside(part, node, host, ask.inventory) for node in nodes):
        return False
    pinned = [host.gpu(address) for address in pins_of(ask.vm).values()]
    return all(gpu is not None and gpu.numa_node in {node.id for node in nodes} for gpu in pinned)


def _elsewhere(ask: Ask) -> Iterator[Rejection]:
    """What else could be done, where only the VM's own host was looked at."""
    if [host.ref for host in ask.hosts] == [ask.vm.host]:
        found = elsewhere(ask.wanted, ask.inventory, ask.catalog)
        if found is not None:
            yield found


def _competitors(ask: Ask, fitting: Fitting) -> Iterator[str]:
    after = ask.inventory.with_vm(replace(ask.vm, host=fitting.placement.host.ref))
    vm = project(ReconfigureVm(ask.vm.ref, change_of(fitting)), after).vm(ask.vm.ref)
    yield from warn_of_displaced(vm, fitting.placement.host, after, ask.catalog)
