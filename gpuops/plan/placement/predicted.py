"""What a step is predicted to do on the last look before it, and whether the look after it shows that.

`execute/steps/predictions.py` calls it: `predict` before the request, `compare` when the step has ended.

A prediction is made of what this run itself knows. So it is compared only where nothing else has happened in between:

* the host shows the settings that it had, and on its GPUs the VMs that were there, but for those that the run's own
  steps were about at that time;
* the VM shows the devices that it was to start with, on the host where it was to start.

Where that is not so, the answer is *cannot say*, and why. What comes and goes between two looks neither of them shows:
for that `execute` asks vCenter's task history, before a misprediction is noted.

Starts that were under way together on one host have no order that is known: a VM on another GPU than predicted is then
no misprediction, and it cannot be said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import gpu_states
from gpuops.errors import Trouble
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.prediction import Compared, Misprediction, Predicted, PredictedGpu, Prediction
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, Vm, pins_of
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.nodes import memory_doubt
from gpuops.plan.placement.project import project, release
from gpuops.plan.placement.room import Room, around
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of

STARTS: Final = (PowerOnVm, ResumeVm, RelocateVm)
"""Steps by which a VM gets GPUs."""
STOPS: Final = (SuspendVm, PowerOffVm, ShutDownGuest)
"""Steps by which a VM gives them up."""

GPUS: Final = "GPUs"
"""In `Prediction.free_after`: those that no VM is on."""

REFUSALS: Final = (Trouble.CAPACITY, Trouble.DENIED)
"""What vCenter means to refuse the step itself by; any other trouble tells nothing of our rules."""

NOT_OF_RULES: Final = frozenset({"no-permission", "login-refused", "lease-reverted"})
"""Codes of errors that are refusals, but of the login: who took a right away, and when, no look tells."""

TOGETHER: Final = "other steps of this run were under way on its host at the same time"
NOT_FORESEEN: Final = "whether it can be done could not be told before"
NOT_TOLD: Final = "vCenter does not tell which VMs are on its GPUs"


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step of a VM that was sent, with what it was sent on."""

    step: Step
    prediction: Prediction
    before: Inventory
    """The last look before it."""


def predict(step: Step, before: Inventory, catalog: Catalog, seconds_at_most: float | None = None) -> Prediction | None:
    """What the step is to do to a VM with GPU devices; None = nothing is predicted of it."""
    vm = before.vms.get(step.vm)
    if vm is None:
        return None
    match step:
        case ReconfigureVm():
            return Prediction(admitted=True, host=vm.host)
        case PowerOnVm() | ResumeVm() if vm.devices:
            return _start(step, vm, step.host or vm.host, before, catalog, seconds_at_most)
        case RelocateVm() if vm.devices and vm.power is PowerState.ON:
            return _start(step, vm, step.host, before, catalog, seconds_at_most)
        case RelocateVm():
            return Prediction(admitted=True, host=step.host)
        case SuspendVm() | PowerOffVm() | ShutDownGuest() if vm.devices:
            host = before.hosts.get(vm.host or "")
            after = project(step, around(host, before, vm), catalog) if host is not None else None
            free = _free(after.hosts[host.ref], after, catalog, vm.profiles) if host and after else {}
            return Prediction(True, host=vm.host, seconds_at_most=seconds_at_most, free_after=free)
        case _:
            return None


def _start(
    step: Step, vm: Vm, ref: str | None, before: Inventory, catalog: Catalog, seconds_at_most: float | None
) -> Prediction:
    host = before.hosts.get(ref or "")
    if host is None:
        return Prediction(host=ref, seconds_at_most=seconds_at_most)
    world = release(vm, around(host, before, vm))
    host = world.hosts[host.ref]
    refused = Room(catalog, certain=False).refusals(replace(vm, host=host.ref), host, world)
    if refused:
        return Prediction(admitted=False, refusal=str(refused[0]), host=host.ref)
    there = replace(vm, host=host.ref)
    doubts = seat(there, demands_of(vm.devices or (), pins_of(vm)), host, world, catalog).doubts
    of_memory = memory_doubt(there, host, world)
    if set(doubts) - {of_memory} or _may_go_elsewhere(there, host, catalog):  # where it goes is a guess
        return Prediction(host=host.ref, seconds_at_most=seconds_at_most)
    after = project(step, replace(world, vms={**world.vms, vm.ref: vm}), catalog)
    then = after.hosts[host.ref]
    gpus = tuple(_expected(gpu, vm.ref) for gpu in then.gpus if gpu.address in _held(after.vms[vm.ref], then))
    free = _free(then, after, catalog, vm.profiles)
    admitted = None if of_memory else True
    return Prediction(admitted, host=host.ref, gpus=gpus or None, seconds_at_most=seconds_at_most, free_after=free)


def _may_go_elsewhere(vm: Vm, host: Host, catalog: Catalog) -> bool:
    """Whether a GPU that is taken for full may take it: beside vGPUs whose places on it are not known, its own too."""
    boards = {facts.board for profile in vm.profiles if (facts := catalog.profile(profile)) is not None}
    return any(
        gpu.vgpus is None and gpu.vgpu_mode in (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)
        and (gpu.vms or len(vm.profiles) > 1)
        and (board := catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)) is not None
        and board.key in boards
        for gpu in host.gpus
    )  # fmt: skip


def with_known_health(now: Inventory, planned: Inventory) -> Inventory:
    """Return the snapshot with the health that GPUs had in the planned one, where it has none of its own."""
    hosts = []
    for ref, host in now.hosts.items():
        earlier = {gpu.address: gpu.health for gpu in planned.hosts[ref].gpus} if ref in planned.hosts else {}
        if any(gpu.health is None and earlier.get(gpu.address) is not None for gpu in host.gpus):
            gpus = (replace(gpu, health=gpu.health or earlier.get(gpu.address)) for gpu in host.gpus)
            hosts.append(replace(host, gpus=tuple(gpus)))
    return now.with_hosts(hosts) if hosts else now


def with_known_places(now: Inventory, planned: Inventory) -> Inventory:
    """The look with what hosts told when it was planned of how vGPUs lie, on GPUs with the same VMs since."""
    hosts = []
    for ref, host in now.hosts.items():
        was = {gpu.address: gpu for gpu in planned.hosts[ref].gpus} if ref in planned.hosts else {}
        gpus = tuple(
            replace(gpu, vgpus=old.vgpus)
            if gpu.vgpus is None
            and (old := was.get(gpu.address)) is not None
            and old.vgpus is not None
            and gpu.vms is not None
            and {*gpu.vms} == {*(old.vms or ())}
            else gpu
            for gpu in host.gpus
        )
        if gpus != host.gpus:
            hosts.append(replace(host, gpus=gpus))
    return now.with_hosts(hosts) if hosts else now


def _expected(gpu: PhysicalGpu, vm: str) -> PredictedGpu:
    own = [each.start for each in gpu.vgpus or () if each.vm == vm]
    known = [start for start in own if start is not None]
    return PredictedGpu(gpu.address, gpu.numa_node, tuple(sorted(known)) if own and len(known) == len(own) else None)


def _held(vm: Vm, host: Host) -> frozenset[PciAddress]:
    """The GPUs that a running VM is on, as far as vCenter shows it."""
    listed = {gpu.address for gpu in host.gpus if vm.ref in (gpu.vms or ())}
    bound = {binding.address for binding in host.bindings if binding.vm == vm.ref}
    fixed = {device.address for device in vm.devices or () if isinstance(device, DirectPathDevice)}
    given = {device.assigned for device in vm.devices or () if isinstance(device, DynamicDevice) and device.assigned}
    return frozenset((listed | bound | fixed | given) & {gpu.address for gpu in host.gpus})


def _free(host: Host, inventory: Inventory, catalog: Catalog, profiles: Iterable[str]) -> Mapping[str, int]:
    """What the host has free, as far as it is known for certain."""
    states = [state for state in gpu_states(host, inventory, catalog) if state.gpu.vms is not None]
    if any(state.unclear or not all(tenant.certain for tenant in state.tenants) for state in states):
        return {}  # a vGPU that may be on several GPUs is counted on each of them
    free = {GPUS: sum(not state.tenants and not _is_listed(state.gpu, inventory) for state in states)}
    for profile in dict.fromkeys(profiles):
        slots = [free_slots(state.gpu, state.holders, profile, catalog, state.starts) for state in states]
        if all(each.exact for each in slots):
            free[profile] = sum(each.at_least for each in slots)
    return free


def _is_listed(gpu: PhysicalGpu, inventory: Inventory) -> bool:
    """Whether a VM is on it that the look tells nothing else of, or that runs."""
    return any((vm := inventory.vms.get(ref)) is None or vm.may_run for ref in gpu.vms or ())


# afterwards


def compare(
    sent: PredictedStep, outcome: Outcome[Step], after: Inventory, together: Sequence[Step], catalog: Catalog
) -> Compared | None:
    """What was predicted of a step beside what became of it; None = vCenter was not asked, or somebody else did it.

    `after`: a look since its end. `together`: steps of this run that were under way on its host at the same time.
    """
    if outcome.verdict in (Verdict.ALREADY, Verdict.SKIPPED):
        return None
    if outcome.verdict is Verdict.UNKNOWN:
        return Compared(cannot_say="what became of it is not known")
    asked = isinstance(sent.step, ShutDownGuest)  # a guest may not listen, which is none of vCenter's doing
    if outcome.verdict is Verdict.FAILED and (outcome.trouble is None or asked):
        return None
    # how long a task of ours runs says itself, whatever else happened on the host
    slow = _slow(sent, outcome)
    wrong = _differences(sent, outcome, after, together, catalog)
    if isinstance(wrong, str):
        return Compared(slow, wrong)
    meanwhile = changed_meanwhile(sent, after, {sent.step.vm, *(step.vm for step in together)}) if wrong else ""
    return Compared(slow, meanwhile) if meanwhile else Compared((*slow, *wrong))


def _differences(
    sent: PredictedStep, outcome: Outcome[Step], after: Inventory, together: Sequence[Step], catalog: Catalog
) -> tuple[Misprediction, ...] | str:
    """Where it differs, but for its duration; or why it cannot be said."""
    prediction = sent.prediction
    if outcome.verdict is Verdict.FAILED:
        if outcome.trouble not in REFUSALS or outcome.fault in NOT_OF_RULES:
            return "it failed for a reason that is none of its host's"
        if not prediction.admitted:
            return () if prediction.admitted is False else NOT_FORESEEN
        # of starts alone, what each of them has taken is there in the look since: is there room beside that?
        made_room = any(isinstance(step, STOPS) for step in together)
        if together and (made_room or not _still_fits(sent.step, after, catalog)):
            return TOGETHER
        return (Misprediction(Predicted.ADMISSION, "admitted", f"refused: {outcome.reason}", facts_of(sent)),)
    if prediction.admitted is False:
        refused = f"refused: {prediction.refusal}"
        return TOGETHER if together else (Misprediction(Predicted.ADMISSION, refused, "admitted", facts_of(sent)),)
    placed = _placed(sent, after, together)
    return placed or _left_free(sent, after, together, catalog)


def _still_fits(step: Step, after: Inventory, catalog: Catalog) -> bool:
    again = predict(step, after, catalog)
    return again is not None and again.admitted is True


def _slow(sent: PredictedStep, outcome: Outcome[Step]) -> tuple[Misprediction, ...]:
    at_most_s, took_s = sent.prediction.seconds_at_most, outcome.duration_s
    if outcome.verdict is not Verdict.DONE or at_most_s is None or took_s is None or took_s <= at_most_s:
        return ()
    return (Misprediction(Predicted.DURATION, f"{at_most_s:.0f} s at the most", f"{took_s:.0f} s", facts_of(sent)),)


def _placed(sent: PredictedStep, after: Inventory, together: Sequence[Step]) -> tuple[Misprediction, ...] | str:
    """Whether the VM is on the GPUs, and lies where it was to; or why that cannot be said."""
    expected, vm = sent.prediction.gpus, after.vms.get(sent.step.vm)
    host = after.hosts.get(sent.prediction.host or "")
    if expected is None:
        was = sent.before.vms.get(sent.step.vm)
        cold = isinstance(sent.step, RelocateVm) and (was is None or was.power is not PowerState.ON)
        return () if cold or not isinstance(sent.step, STARTS) else "where it goes was a guess"
    if vm is None or host is None:
        return "its VM or its host is gone"
    held = _held(vm, host)
    if not held:
        return NOT_TOLD
    if held == {gpu.address for gpu in expected}:
        return _started_at(sent, expected, vm.ref, host)
    if together:
        return TOGETHER
    found = tuple(_expected(gpu, vm.ref) for gpu in host.gpus if gpu.address in held)
    return (Misprediction(Predicted.GPU, _shown(expected), _shown(found), facts_of(sent)),)


def _started_at(
    sent: PredictedStep, expected: Iterable[PredictedGpu], vm: str, host: Host
) -> tuple[Misprediction, ...]:
    """The vGPUs that lie elsewhere on the right GPU, where both are known."""
    found = {gpu.address: _expected(gpu, vm) for gpu in host.gpus}
    return tuple(
        Misprediction(Predicted.MIG_START, _starts(each), _starts(found[each.address]), facts_of(sent))
        for each in expected
        if each.starts is not None and found[each.address].starts not in (None, each.starts)
    )


def _left_free(
    sent: PredictedStep, after: Inventory, together: Sequence[Step], catalog: Catalog
) -> tuple[Misprediction, ...]:
    """What is free on the host, where nothing but this step changed it."""
    host, vm = after.hosts.get(sent.prediction.host or ""), after.vms.get(sent.step.vm)
    if host is None or vm is None or together or not sent.prediction.free_after:
        return ()
    free = _free(host, around(host, after, vm), catalog, vm.profiles)
    wrong = {name: n for name, n in sent.prediction.free_after.items() if name in free and free[name] != n}
    if not wrong:
        return ()
    texts = (", ".join(f"{number} {name} free" for name, number in which.items()) for which in (wrong, free))
    predicted, found = texts
    return (Misprediction(Predicted.FREE_AFTER, predicted, found, facts_of(sent)),)


def changed_meanwhile(sent: PredictedStep, after: Inventory, own: Collection[str]) -> str:
    """What else has happened to its VM or host between the two looks, but for VMs of `own`; empty = nothing is seen."""
    ref = sent.prediction.host or ""
    vm, was = after.vms.get(sent.step.vm), sent.before.vms.get(sent.step.vm)
    host, before = after.hosts.get(ref), sent.before.hosts.get(ref)
    if vm is None or was is None or host is None or before is None:
        return "its VM or its host is gone"
    if vm.instance_uuid != was.instance_uuid:
        return "its id is another VM's now"
    if not isinstance(sent.step, ReconfigureVm) and (_devices(vm) != _devices(was) or pins_of(vm) != pins_of(was)):
        return "the devices of its VM were changed meanwhile"
    if isinstance(sent.step, STARTS) and vm.power is PowerState.ON and vm.host != ref:
        return "its VM runs on another host: DRS, or somebody, has moved it"
    if _settings(host) != _settings(before) or any(
        VgpuMode.NONE not in (now.vgpu_mode, gpu.vgpu_mode) and now.vgpu_mode is not gpu.vgpu_mode
        for now, gpu in zip(host.gpus, before.gpus, strict=False)
    ):
        return "settings of its host were changed meanwhile"
    if any(gpu.vms is None for gpu in (*host.gpus, *before.gpus) if _is_listing(gpu)):
        return NOT_TOLD
    for now, gpu in zip(host.gpus, before.gpus, strict=True):
        if {*(now.vms or ())} - {*own} != {*(gpu.vms or ())} - {*own}:
            return "another VM came to a GPU of its host, or left one, meanwhile"
    return ""


def _is_listing(gpu: PhysicalGpu) -> bool:
    return gpu.passthrough is None or not gpu.passthrough.active


def _devices(vm: Vm) -> tuple[object, ...]:
    """What it is to start with; which GPU a dynamic device gets is told by the host alone."""
    return tuple(replace(each, assigned=None) if isinstance(each, DynamicDevice) else each for each in vm.devices or ())


def _settings(host: Host) -> tuple[object, ...]:
    """What placement on the host goes by."""
    gpus = tuple((gpu.address, gpu.graphics_type, gpu.passthrough) for gpu in host.gpus)
    return (host.connected, host.in_maintenance, host.assignment_policy, host.default_graphics_type, host.booted, gpus)


def facts_of(sent: PredictedStep) -> Mapping[str, str]:
    """What the prediction went by: enough to make it again."""
    vm, host = sent.before.vms.get(sent.step.vm), sent.before.hosts.get(sent.prediction.host or "")
    facts = {"vCenter API": sent.before.api_version}
    if vm is not None:
        facts["profiles"] = ", ".join(vm.profiles) or "none"
        facts |= {f"pin of vGPU {ordinal}": str(gpu) for ordinal, gpu in pins_of(vm).items()}
    if host is not None:
        facts["host version"] = host.version or "unknown"
        facts["assignment policy"] = host.assignment_policy.value if host.assignment_policy else "unknown"
        facts |= {f"GPU {gpu.address}": _gpu_fact(gpu, sent.before) for gpu in host.gpus}
    return facts


def _gpu_fact(gpu: PhysicalGpu, inventory: Inventory) -> str:
    """`NVIDIA A40, sameSize, NUMA node 0, runs a40-8q twice`; no VM is named."""
    mode = gpu.vgpu_mode.value if gpu.vgpu_mode is not None else "mode unknown"
    node = f"NUMA node {gpu.numa_node}" if gpu.numa_node is not None else "NUMA node unknown"
    if gpu.vms is None:
        return f"{gpu.name}, {mode}, {node}, what runs there is unknown"
    held = [profile for ref in gpu.vms if ref in inventory.vms for profile in inventory.vms[ref].profiles]
    runs = f"runs {', '.join(sorted(held))}" if held else f"{len(gpu.vms)} VMs" if gpu.vms else "empty"
    return f"{gpu.name}, {mode}, {node}, {runs}"


def _shown(gpus: Iterable[PredictedGpu]) -> str:
    return ", ".join(str(gpu) for gpu in gpus)


def _starts(gpu: PredictedGpu) -> str:
    return f"{gpu.address} at {', '.join(str(start) for start in gpu.starts or ())}"
