"""Judges the table of assumptions: which rules of vSphere and NVIDIA a vCenter confirms, contradicts, or does not show.

The input is what `gpuops.api.first_contact` reads; nothing is changed. For the rules about GPUs, the last start on each
host is planned again and compared with where the VM is. Example: the last event on a host is the start of ml-07, which
is on GPU af. Without ml-07 the host has two empty GPUs, 3b and af, and gpuops would plan 3b: the rule is contradicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from gpuops.advise.desktop_sessions import match_machines
from gpuops.model.assumption import Assumption, JudgedAssumption, Observation
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import NOT_NAMED, PciAddress, VgpuMode
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Contact, Inventory, PastEvent, PastTask
from gpuops.model.vcenter.vm import OtherPassthrough, PowerState, VgpuDevice, Vm, passthru_number, pins_of
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.placement.host_filters import memory_doubt
from gpuops.plan.placement.project import project, release
from gpuops.plan.placement.seating import Room, reduced_to_host, seat
from gpuops.plan.placement.vm_demand import demands_of
from gpuops.plan.rotation.nights.bounds import UNMEASURED_SUSPEND_S

Facts = Mapping[str, str | int]
Observations = Iterator[tuple[bool, Facts]]
"""Whether a rule holds, with the values for its sentence in the table; `vm`, `source` and `host` are object ids."""

_MOST_PASSTHROUGH: Final = 32
"""pciPassthru0 to 31: DirectPath devices count upwards from 0, SR-IOV network cards downwards from 31."""
_RELEASED_WITHIN_S: Final = 60.0
"""vCenter may list a suspended VM on its GPU for this long."""
_REFUSED_WITHIN_S: Final = 10.0
_MOST_OVERHEAD: Final = 0.1
_SETTLED_S: Final = 300.0
"""DRS does not move a VM that is still on its host this long after its start or suspension."""
_MOVES: Final = ("VirtualMachine.relocate", "VirtualMachine.migrate")


def judge_assumptions(rows: Iterable[Assumption], contact: Contact, catalog: Catalog) -> tuple[JudgedAssumption, ...]:
    """Judge each row by what one vCenter shows. An observation against the rule counts more than those for it."""
    observed: defaultdict[str, list[Observation]] = defaultdict(list)
    for id, holds, facts in _last_starts(contact, catalog):
        observed[id].append(Observation(holds, facts))
    for id, read in READERS.items():
        observed[id] += [Observation(holds, facts) for holds, facts in read(contact)]
    return tuple(
        JudgedAssumption(row, min(observed[row.id], key=lambda observation: observation.holds, default=None))
        for row in rows
    )


def _last_starts(contact: Contact, catalog: Catalog) -> Iterator[tuple[str, bool, Facts]]:
    """Replay the last start on each host, if no VM left or came to the host since. Yields (row id, holds, facts)."""
    last: dict[str, PastEvent] = {}
    for event in contact.events:
        last.update({ref: event for ref in (event.host, event.source) if ref is not None})
    for ref, event in last.items():
        vm, host = contact.inventory.vms.get(event.ref), contact.inventory.hosts.get(ref)
        if event.kind == "VmPoweredOnEvent" and vm and host and vm.host == ref and vm.power is PowerState.ON:
            yield from _replay_start(vm, host, contact.inventory, catalog)


def _replay_start(vm: Vm, host: Host, after: Inventory, catalog: Catalog) -> Iterator[tuple[str, bool, Facts]]:
    """Plan the last start of a VM as if it had not happened yet, and compare that with where the VM is now.

    Yields (rule, whether it is confirmed, facts); nothing if the plan would have been uncertain about the GPU.
    """
    stopped_vm = replace(vm, power=PowerState.OFF)
    before = reduced_to_host(host, release(stopped_vm, after), stopped_vm)
    host_before, pins = before.hosts[host.ref], pins_of(vm)
    is_unknown = any(gpu.vms is None for gpu in host.gpus if not gpu.is_active_in_passthrough)
    if is_unknown or not vm.vgpus or Room(catalog, certain=False).refusals(stopped_vm, host_before, before):
        return
    doubts = seat(stopped_vm, demands_of(vm.devices or (), pins), host_before, before, catalog).doubts
    # a doubt about memory does not count: the VM has started here
    if {*doubts} - {memory_doubt(stopped_vm, host_before, before)} or _may_go_elsewhere(vm, host_before, catalog):
        return
    expected = _places(vm, project(PowerOnVm(vm.ref, host.ref), before, catalog).hosts[host.ref])
    actual = _places(vm, host)
    if not expected or not actual:
        return
    rule, is_right = "vgpu-pin" if pins else "gpu-choice", {*expected} == {*actual}
    facts = {"host": host.ref, "vm": vm.ref, "expected": ", ".join(map(str, expected)),
             "found": ", ".join(map(str, actual))}  # fmt: skip
    gpu = next(gpu for gpu in host.gpus if gpu.address in expected)
    same_model = [other for other in host.gpus if other.device_id == gpu.device_id and other.graphics_type is not None]
    # On the only GPU of its model the VM had to start: that confirms nothing.
    had_choice = len(same_model) > 1 and (pins or gpu.vgpu_mode is VgpuMode.SAME_SIZE)
    if had_choice or not is_right:
        yield rule, is_right, facts
    known_addresses = [address for address, starts in expected.items() if is_right and starts and actual[address]]
    if known_addresses:
        facts |= {"expected": _starts_text(expected, known_addresses), "found": _starts_text(actual, known_addresses)}
        yield "gpu-instance-start", facts["expected"] == facts["found"], facts


def _may_go_elsewhere(vm: Vm, host: Host, catalog: Catalog) -> bool:
    """Return whether the plan may wrongly take a GPU as full, because the positions of the vGPUs on it are unknown."""
    boards = {facts.board for profile in vm.profiles if (facts := catalog.profile(profile)) is not None}
    return any(
        gpu.vgpus is None and gpu.vgpu_mode in (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)
        and (gpu.vms or len(vm.profiles) > 1)
        and (board := catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)) is not None
        and board.key in boards
        for gpu in host.gpus
    )  # fmt: skip


def _places(vm: Vm, host: Host) -> dict[PciAddress, tuple[int, ...]]:
    """Return the GPUs that the VM is on, each with the sorted start positions of its vGPUs; () = unknown."""
    places = {}
    for gpu in host.gpus:
        if vm.ref in (gpu.vms or ()):
            starts = [vgpu.start for vgpu in gpu.vgpus or () if vgpu.vm == vm.ref]
            known_starts = [start for start in starts if start is not None]
            places[gpu.address] = tuple(sorted(known_starts)) if len(known_starts) == len(starts) else ()
    return places


def _starts_text(places: Mapping[PciAddress, tuple[int, ...]], addresses: Iterable[PciAddress]) -> str:
    return ", ".join(f"{address} at {', '.join(map(str, places[address]))}" for address in addresses)


def _passthrough_keys(contact: Contact, *, vgpus: bool) -> Observations:
    """Yield for each vGPU, or each other passthrough device, whether its key is a `pciPassthruN` from 0 to 31."""
    for vm in contact.inventory.vms.values():
        for device in vm.devices or ():
            if isinstance(device, VgpuDevice) is vgpus and not isinstance(device, OtherPassthrough):
                yield 0 <= passthru_number(device.key) < _MOST_PASSTHROUGH, {"vm": vm.ref, "key": device.key}


def _slots_of_suspended(contact: Contact) -> Observations:
    """Yield for each suspended VM with vGPUs whether no GPU of its host lists it any more.

    A VM that is still listed is left out for `_RELEASED_WITHIN_S` after its suspend.
    """
    for host in contact.inventory.hosts.values():
        vgpu_gpus = [gpu for gpu in host.gpus if not gpu.is_active_in_passthrough]
        if not vgpu_gpus or any(gpu.vms is None for gpu in vgpu_gpus):
            continue
        gpu_by_vm = {ref: str(gpu.address) for gpu in vgpu_gpus for ref in gpu.vms or ()}
        for vm in contact.inventory.vms_on(host):
            since_suspend = contact.inventory.taken_at - vm.suspended_at if vm.suspended_at else timedelta()
            gpu, seconds = gpu_by_vm.get(vm.ref, ""), since_suspend.total_seconds()
            is_suspended = vm.power is PowerState.SUSPENDED and vm.vgpus
            if is_suspended and (not gpu or seconds >= _RELEASED_WITHIN_S):
                yield not gpu, {"host": host.ref, "vm": vm.ref, "gpu": gpu, "seconds": round(seconds)}


def _refused_starts(contact: Contact) -> Observations:
    """Yield for each start that failed for lack of a GPU whether its fault is the expected one."""
    for task, vm in _tasks(contact, "powerOn"):
        is_expected = task.fault == "InsufficientGraphicsResourcesFault"
        if vm.vgpus and (is_expected or (task.fault and task.names_vgpu)):
            yield is_expected, {"vm": vm.ref, "fault": task.fault}


def _refused_suspends(contact: Contact) -> Observations:
    """Yield for each refused suspend whether it was refused at once, with the expected fault."""
    for task, vm in _tasks(contact, "suspend"):
        seconds = task.ran_s or 0.0
        if task.fault in ("NotSupported", "GenericVmConfigFault"):
            holds = task.fault == "NotSupported" and seconds <= _REFUSED_WITHIN_S
            yield holds, {"vm": vm.ref, "fault": task.fault, "seconds": round(seconds)}


def _suspend_durations(contact: Contact) -> Observations:
    """Yield for each suspend of a VM with vGPUs whether it took no longer than gpuops assumes."""
    for task, vm in _tasks(contact, "suspend"):
        if not task.fault and task.ran_s is not None and vm.vgpus:
            facts: Facts = {"vm": vm.ref, "mib": vm.memory_mib or 0, "seconds": round(task.ran_s)}
            yield task.ran_s <= UNMEASURED_SUSPEND_S, facts


def _tasks(contact: Contact, kind: str) -> Iterator[tuple[PastTask, Vm]]:
    """Yield the past tasks of this kind whose VM still exists, each with its VM."""
    for task in contact.tasks:
        vm = contact.inventory.vms.get(task.ref)
        if vm is not None and task.kind == f"VirtualMachine.{kind}":
            yield task, vm


def _memory_of_suspended(contact: Contact) -> Observations:
    """Yield for each cluster whether its root resource pool counts the reservations of suspended VMs.

    Running VMs also reserve an overhead of a few per cent. Suspended VMs that reserve less than a tenth of what the
    running VMs reserve could be mistaken for it, so such clusters are left out.
    """
    inventory = contact.inventory
    for ref, reserved in contact.reserved_mib.items():
        vms = [vm for host in inventory.hosts.values() if host.cluster == ref for vm in inventory.vms_on(host)]
        running, suspended = (_reserved_mib(vms, power) for power in (PowerState.ON, PowerState.SUSPENDED))
        if running is None or suspended is None or suspended <= running * _MOST_OVERHEAD:
            continue
        if reserved - running <= suspended + running * _MOST_OVERHEAD:
            facts: Facts = {"cluster": ref, "reserved": reserved, "running": running, "suspended": suspended}
            yield reserved - running < suspended, facts


def _reserved_mib(vms: Iterable[Vm], power: PowerState) -> int | None:
    """Return the memory in MiB that the VMs in this state reserve; None if it is unknown for one of them."""
    numbers = [vm.memory_reservation_mib for vm in vms if vm.power is power]
    return None if None in numbers else sum(number or 0 for number in numbers)


def _hosts_after_event(contact: Contact, event_kind: str, power: PowerState) -> Observations:
    """Yield for each VM with vGPUs whether it is still on the host of its last event of this kind.

    VMs that a user moved since are left out, and VMs that DRS may still move away soon after the event.
    """
    last = {event.ref: event for event in contact.events if event.kind == event_kind}
    for ref, event in last.items():
        vm = contact.inventory.vms.get(ref)
        if vm is None or vm.power is not power or not vm.vgpus or not vm.host or not event.host:
            continue
        moves = [task for task in contact.tasks if task.ref == ref and task.by_user and task.kind in _MOVES]
        seconds = (contact.inventory.taken_at - event.at).total_seconds()
        stayed = vm.host == event.host
        if all(task.queued < event.at for task in moves) and (not stayed or seconds >= _SETTLED_S):
            details: Facts = {"seconds": round(seconds)} if stayed else {"source": event.host}
            yield stayed, {"vm": ref, "host": vm.host, "event": event_kind, **details}


def _clones(contact: Contact, values_of: Callable[[Vm], Mapping[str, str]], *, copied: bool) -> Observations:
    """Yield for each clone whether it has all values of its source (`copied`), or none of them, as the rule says.

    `values_of`: returns the values of a VM that the rule is about, by key.

    Clones are left out if they or their source were changed afterwards, for example by a script that copies attributes,
    or if such changes could not be read.
    """
    for task, source in _tasks(contact, "clone") if contact.changes is not None else ():
        clone, expected = contact.inventory.vms.get(task.created_vm or ""), values_of(source)
        made_at = task.queued + timedelta(seconds=task.ran_s or 0.0)
        changed = {change.ref for change in contact.changes or () if change.at > made_at}
        if clone is None or not expected or {clone.ref, source.ref} & changed:
            continue
        copies = sum(values_of(clone).get(key) == text for key, text in expected.items())
        if copies in (0, len(expected)):  # a part of the values proves neither
            facts: Facts = {"vm": clone.ref, "source": source.ref, "copies": copies, "all": len(expected)}
            yield (copies > 0) is copied, facts


def _passthrough_options(vm: Vm) -> Mapping[str, str]:
    return {key: text for key, text in (vm.extra_config or {}).items() if key.lower().startswith("pcipassthru")}


def _counter_instances(contact: Contact) -> Observations:
    """Yield for each host whether an instance of its GPU counters is the address of one of its GPUs."""
    for ref, instances in contact.counter_instances.items():
        addresses = {str(gpu.address) for gpu in contact.inventory.hosts[ref].gpus}
        named = [instance for instance in instances if str(PciAddress.parse_or_none(instance)) in addresses]
        yield bool(named), {"host": ref, "instance": (named or instances)[0]}


def _counter_names(contact: Contact) -> Observations:
    for name in (GPU_USE, GPU_MEMORY) if contact.counter_names else ():
        yield name in contact.counter_names, {"counter": name}


def _modes_in_force(contact: Contact) -> Observations:
    """Yield an observation against the rule for each GPU whose configured vGPU size is not the one in use."""
    for host in contact.inventory.hosts.values():
        graphics = host.settings.graphics if host.settings is not None else None
        for device in graphics.devices if graphics is not None else ():
            gpu = host.gpu(device.address)
            if gpu is None or gpu.vgpu_mode is None or gpu.vgpu_mode == device.vgpu_mode:
                continue
            if {gpu.vgpu_mode, device.vgpu_mode} == {VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE}:
                facts = {"gpu": str(gpu.address), "host": host.ref}
                yield False, facts | {"configured": str(device.vgpu_mode), "mode": gpu.vgpu_mode.value}


def _machines_in_maintenance(contact: Contact) -> Observations:
    """Yield the machines that the broker still shows in maintenance while their VM is off or suspended.

    A missing machine proves nothing: it may not be in maintenance.
    """
    inventory = contact.inventory
    match = match_machines(inventory.vms.values(), inventory.vcenter, contact.machines, ())
    for ref, machine in match.machine_of.items():
        power = inventory.vms[ref].power
        if machine.in_maintenance and power in (PowerState.OFF, PowerState.SUSPENDED):
            yield True, {"vm": ref, "power": power.value}


def _lost_gpus(contact: Contact, *, named: bool) -> Observations:
    """Yield the lost GPUs that vCenter lists. `named`: the rule is that nvidia-smi names them too."""
    for host in contact.inventory.hosts.values():
        for gpu in host.gpus:
            if gpu.health is not None and gpu.health.is_lost and gpu.graphics_type is not None:
                yield gpu.health != NOT_NAMED or not named, {"host": host.ref, "gpu": str(gpu.address)}


READERS: Final[Mapping[str, Callable[[Contact], Observations]]] = {
    "passthrough-device-keys": lambda contact: _passthrough_keys(contact, vgpus=False),
    "vgpu-device-keys": lambda contact: _passthrough_keys(contact, vgpus=True),
    "no-gpu-fault": _refused_starts,
    "suspend-frees-slot": _slots_of_suspended,
    "suspend-refusal": _refused_suspends,
    "suspend-duration": _suspend_durations,
    "suspended-vm-memory": _memory_of_suspended,
    "suspended-vm-host": lambda contact: _hosts_after_event(contact, "VmSuspendedEvent", PowerState.SUSPENDED),
    "drs-vgpu-vms": lambda contact: _hosts_after_event(contact, "VmPoweredOnEvent", PowerState.ON),
    "clone-attributes": lambda contact: _clones(contact, lambda vm: vm.attributes, copied=False),
    "clone-options": lambda contact: _clones(contact, _passthrough_options, copied=True),
    "gpu-counter-instances": _counter_instances,
    "gpu-counter-names": _counter_names,
    "vgpu-mode-change": _modes_in_force,
    "lost-gpu-listed": lambda contact: _lost_gpus(contact, named=False),
    "smi-lost-gpu": lambda contact: _lost_gpus(contact, named=True),
    "broker-maintenance": _machines_in_maintenance,
}
"""By row id, the function that yields its observations. The rows in `REPLAYED` come from replayed starts instead."""
REPLAYED: Final = ("gpu-choice", "vgpu-pin", "gpu-instance-start")
