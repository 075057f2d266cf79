"""Read and change over a host's shell what vCenter has no call for: MIG mode, health of GPUs, places of vGPUs on them.

A host shell is only used if it is configured. nvidia-smi on the hosts also reports the use of desktops' vGPUs, which is
read into a snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from gpuops import clock
from gpuops.advise.capacity import instance_of
from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.site.ports import Hosts
from gpuops.model.desktops.evidence import VgpuUse
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import NOT_NAMED, GraphicsType, PciAddress, PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiReadings, SmiState, SmiVgpu
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef

if TYPE_CHECKING:
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.model.vcenter.vm import Vm
    from gpuops.plan.core.steps import HostStep, HostTask

ASK_AGAIN_S: Final = 60.0
"""`HostsHealth` asks a host once in this time: several looks of one run follow each other in seconds."""
MOST_REQUESTS: Final = 32
"""How many requests are open at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class HostShell(Protocol):
    """Requests to a host's nvidia-smi. `hostshell` implements it; every method raises only gpuops errors."""

    def mig(self, host: str) -> tuple[SmiState, ...]:
        """Return MIG mode and health of each GPU of the host of this name. Raises Refused if it cannot be asked."""
        ...

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        """Return the vGPUs that run on the host of this name. Raises Refused if it cannot be asked."""
        ...

    def readings(self, host: str) -> SmiReadings:
        """Return the readings of GPUs and vGPUs of the host of this name. Raises Refused if it cannot be asked."""
        ...

    def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
        """Switch MIG mode of these GPUs. Raises Refused, and OutcomeUnknown if the answer was lost."""
        ...


class ShelledHosts:
    """Implements `Hosts` by vCenter, and by the shell for MIG."""

    def __init__(self, hosts: Hosts, shell: HostShell, note_applied: Callable[[bool | None], None]) -> None:
        """`note_applied` is called with None before the shell changes something, and with True afterwards."""
        self._hosts = hosts
        self._shell = shell
        self._note_applied = note_applied

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        inventory_with_settings = self._hosts.with_settings(inventory, hosts)
        hosts_to_ask = [inventory_with_settings.hosts[ref] for ref in hosts if ref in inventory_with_settings.hosts]
        return inventory_with_settings.completed(hosts=ask_in_parallel(self._with_mig, hosts_to_ask))

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return self._hosts.with_other_devices(inventory, hosts)

    def _with_mig(self, host: Host) -> Host:
        settings, answer = host.settings or HostSettings(), _answer(self._shell.mig, host)
        if isinstance(answer, GpuopsError):
            unread = (*settings.unread, f"{UNASKED}{answer.line}")
            return replace(host, settings=replace(settings, unread=unread))
        return replace(_with_states(host, answer), settings=replace(settings, mig=answer))

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return self._hosts.with_devices(inventory, hosts)

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        return self._hosts.lacking(needed)

    def read_held_privileges(
        self, hosts: Collection[str], privileges: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        return self._hosts.read_held_privileges(hosts, privileges)

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        from gpuops.plan.core.steps import ConfigureMig

        if isinstance(step, ConfigureMig):
            self._note_applied(None)
            self._shell.set_mig(inventory.hosts[step.host].name, step.devices, on=step.on)
            self._note_applied(True)
            return None
        return self._hosts.configure(step, inventory, op_id)

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        return self._hosts.submit(step, inventory, op_id)

    def find_task(self, step: HostTask) -> TaskRef | None:
        return self._hosts.find_task(step)

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        return self._hosts.wait_for_boot(since, timeout_s)


def with_vgpus(inventory: Inventory, shell: HostShell, say: Callable[[str], None], catalog: Catalog) -> Inventory:
    """Return the snapshot with what hosts report of GPUs that serve vGPUs: their health, and the places of vGPUs.

    Places are read from hosts that have a vGPU on a GPU in MIG or mixed-size mode. What a host does not answer stays as
    vCenter reports it, and `say` is called with the reason. Raises NotConnected.
    """
    hosts = [host for host in inventory.hosts.values() if _may_be_asked(host) or any(map(has_places, host.gpus))]
    answers = ask_in_parallel(lambda host: _ask_host(host, shell), hosts)
    vgpu_errors = [answer.vgpus for answer in answers if isinstance(answer.vgpus, GpuopsError)]
    unknown = dict.fromkeys(error.line for error in vgpu_errors)  # each reason once, in order
    for line in unknown:
        say(f"gpuops does not know where the vGPUs are placed on their GPUs: {line}")
    _say_unknown([answer.states for answer in answers], say, unknown)
    return inventory.completed(
        hosts=[answer.apply_to(host, inventory, catalog) for host, answer in zip(hosts, answers, strict=True)]
    )


class HostsHealth:
    """Adds the health of the GPUs that serve vGPUs to snapshots, as connected hosts report it.

    A host is asked at most once in `ASK_AGAIN_S`, whether it answered or not. Without an answer the health is unknown.
    """

    def __init__(
        self, shell: HostShell, say: Callable[[str], None], passed_s: Callable[[], float] = clock.passed_s
    ) -> None:
        """`say` is called once with each reason why a host does not answer."""
        self._shell = shell
        self._say = say
        self._passed_s = passed_s
        self._answers: dict[str, tuple[float, States]] = {}
        self._reported: set[str] = set()

    def __call__(self, inventory: Inventory) -> Inventory:
        """Return the snapshot with the health of its GPUs. Raises NotConnected."""
        hosts = [host for host in inventory.hosts.values() if _may_be_asked(host)]
        due = [host for host in hosts if self._is_due(host)]
        for host, states in zip(due, ask_in_parallel(lambda host: _answer(self._shell.mig, host), due), strict=True):
            self._answers[host.ref] = self._passed_s(), states
            if isinstance(states, GpuopsError) and states.line not in self._reported:
                self._reported.add(states.line)
                self._say(f"the health of GPUs is not known: {states.line}")
        return inventory.completed(hosts=[_with_states(host, self._answers[host.ref][1]) for host in hosts])

    def _is_due(self, host: Host) -> bool:
        answer = self._answers.get(host.ref)
        return answer is None or self._passed_s() - answer[0] >= ASK_AGAIN_S


States = Sequence[SmiState] | GpuopsError


@dataclass(frozen=True, slots=True)
class _HostAnswer:
    """The answers of one host; an error if it did not answer."""

    states: States | None
    """None = it was not asked."""
    vgpus: Sequence[SmiVgpu] | GpuopsError

    def apply_to(self, host: Host, inventory: Inventory, catalog: Catalog) -> Host:
        """Return the host with the health of its GPUs and the places of its vGPUs, as far as it answered."""
        host = _with_states(host, self.states) if self.states is not None else host
        return host if isinstance(self.vgpus, GpuopsError) else _with_vgpus(host, self.vgpus, inventory, catalog)


def _ask_host(host: Host, shell: HostShell) -> _HostAnswer:
    vgpus = _answer(shell.vgpus, host) if _has_placed_vms(host) else ()
    return _HostAnswer(_answer(shell.mig, host) if _may_be_asked(host) else None, vgpus)


def _may_be_asked(host: Host) -> bool:
    """Return whether the host is connected and has GPUs for vGPUs whose health is not known yet."""
    return host.connected is True and any(_is_shared(gpu) and gpu.health is None for gpu in host.gpus)


def _has_placed_vms(host: Host) -> bool:
    """Return whether a VM is on a GPU on which each vGPU has a place."""
    return any(gpu.vms and has_places(gpu) for gpu in host.gpus)


def _say_unknown(answers: Sequence[States | None], say: Callable[[str], None], already: Collection[str] = ()) -> None:
    """Call `say` once with each reason why the health of GPUs is unknown, unless it was already said."""
    for line in dict.fromkeys(answer.line for answer in answers if isinstance(answer, GpuopsError)):
        if line not in already:
            say(f"the health of GPUs is not known: {line}")


def _is_shared(gpu: PhysicalGpu) -> bool:
    return gpu.graphics_type is GraphicsType.SHARED_DIRECT and not gpu.is_active_in_passthrough


def _with_states(host: Host, states: States) -> Host:
    """Return the host with the health of its GPUs; unknown if nvidia-smi did not answer.

    A GPU that serves vGPUs counts as lost if nvidia-smi lists other GPUs and not this one: the host's driver must have
    it, and some versions of nvidia-smi may omit a lost GPU.
    """
    health = {} if isinstance(states, GpuopsError) else {state.address: state.health for state in states}
    gpus = []
    for gpu in host.gpus:
        health_if_missing = NOT_NAMED if health and _is_shared(gpu) else None
        gpus.append(replace(gpu, health=health.get(gpu.address, health_if_missing)))
    return replace(host, gpus=tuple(gpus))


def has_places(gpu: PhysicalGpu) -> bool:
    """Return whether the GPU is in a mode in which a vGPU lies at one of several places."""
    return gpu.vgpu_mode in (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)


def _answer(ask: Callable[[str], R], host: Host) -> R | GpuopsError:
    """Return the answer of the host, or the error if it did not answer. Raises NotConnected."""
    try:
        return ask(host.name)
    except NotConnected:
        raise
    except GpuopsError as error:
        return error


def _with_vgpus(host: Host, vgpus: Sequence[SmiVgpu], inventory: Inventory, catalog: Catalog) -> Host:
    """Return the host with the places of the vGPUs on its GPUs.

    nvidia-smi names VMs: each name must be that of exactly one VM that vCenter lists on the GPU. Otherwise the GPU is
    left unchanged.
    """
    gpus = []
    for gpu in host.gpus:
        refs = {inventory.vms[ref].name: ref for ref in gpu.vms or () if ref in inventory.vms}
        vgpus_of_gpu = [vgpu for vgpu in vgpus if vgpu.gpu == gpu.address]
        all_named = len(refs) == len(gpu.vms or ()) and all(vgpu.vm_name in refs for vgpu in vgpus_of_gpu)
        if has_places(gpu) and gpu.vms is not None and all_named:
            placements = tuple(
                VgpuPlacement(refs[vgpu.vm_name], vgpu.profile, _start_slice(vgpu, gpu, catalog))
                for vgpu in vgpus_of_gpu
            )
            gpus.append(replace(gpu, vgpus=placements))
        else:
            gpus.append(gpu)
    return replace(host, gpus=tuple(gpus))


def _start_slice(vgpu: SmiVgpu, gpu: PhysicalGpu, catalog: Catalog) -> int | None:
    """Return the first memory slice of a vGPU, counted in the slices of the catalogue.

    nvidia-smi may count in other slices: an instance 1g of an RTX PRO 6000 is one of four slices, or three of twelve.
    """
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    profile = catalog.profile(vgpu.profile)
    instance = instance_of(board, profile) if board is not None and profile is not None else None
    if vgpu.start is None or not vgpu.instance_slices or instance is None:
        return vgpu.start
    start, remainder = divmod(vgpu.start * instance.memory_slices, vgpu.instance_slices)
    return vgpu.start if remainder else start  # a remainder shows that nvidia-smi does not count in such slices


def ask_in_parallel(ask: Callable[[T], R], subjects: Sequence[T]) -> list[R]:
    """Return the answers in order, asking several at a time. Raises the first error, in order, once all have ended."""
    numbers: SimpleQueue[int] = SimpleQueue()
    answers: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def ask_waiting_subjects() -> None:
        while True:
            try:
                number = numbers.get_nowait()
            except Empty:
                return
            try:
                answers[number] = ask(subjects[number])
            except BaseException as error:
                errors[number] = error

    for number in range(len(subjects)):
        numbers.put(number)
    # daemons: Ctrl-C does not wait for a host that is silent
    threads = [
        Thread(target=ask_waiting_subjects, name=f"at-once-{number}", daemon=True)
        for number in range(min(MOST_REQUESTS, len(subjects)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(subjects))]


USE_AGAIN_S: Final = 60.0
"""A host is asked once in this time, whether it answered or not: a night reads each desktop alone."""


class VgpuShell(Protocol):
    """The part of nvidia-smi on hosts that is needed here. It raises only gpuops errors."""

    def vgpu_use(self, host: str) -> tuple[SmiVgpu, ...]:
        """Return the vGPUs that run on the host of this name, and how much each is used now."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    answered_s: float
    vgpus: tuple[SmiVgpu, ...]
    failed: str = ""


class HostsVgpuUse:
    """Implements `VgpuUseSource` by requests to hosts, several at once; an answer is used for a minute.

    nvidia-smi identifies a VM by its name alone: if two VMs on a host share a name, the use of both is unknown.
    """

    def __init__(
        self, shell: VgpuShell, say: Callable[[str], None], passed_s: Callable[[], float] = clock.passed_s
    ) -> None:
        """`say` is called once with each reason why a host does not answer."""
        self._shell = shell
        self._say = say
        self._passed_s = passed_s
        self._answers: dict[str, _Answer] = {}
        self._reported: set[str] = set()

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        hosts = {ref: inventory.hosts[ref] for vm in vms if (ref := vm.host or "") in inventory.hosts}
        due = [host for host in hosts.values() if host.connected is True and self._is_due(host)]
        for host, answer in zip(due, ask_in_parallel(self._ask_host, due), strict=True):
            self._answers[host.ref] = answer
            if answer.failed and answer.failed not in self._reported:
                self._reported.add(answer.failed)
                self._say(f"the use of vGPUs is not known: {answer.failed}")
        return {vm.ref: self._use_of(vm, inventory) for vm in vms}

    def _is_due(self, host: Host) -> bool:
        answer = self._answers.get(host.ref)
        return answer is None or self._passed_s() - answer.answered_s >= USE_AGAIN_S

    def _ask_host(self, host: Host) -> _Answer:
        try:
            vgpus = self._shell.vgpu_use(host.name)
        except GpuopsError as error:
            return _Answer(self._passed_s(), (), error.message)
        return _Answer(self._passed_s(), vgpus)

    def _use_of(self, vm: Vm, inventory: Inventory) -> VgpuUse:
        """Return the use of the VM's vGPUs by the last answer of its host, or why it is unknown."""
        answer = self._answers.get(vm.host or "")
        if answer is None:
            return VgpuUse(None, because="its host is not connected, or not known")
        if answer.failed:
            return VgpuUse(None, because="the nvidia-smi of its host does not answer")
        names = Counter(host_vm.name for host_vm in inventory.vms_by_host.get(vm.host or "", ()))
        vgpus = [vgpu for vgpu in answer.vgpus if vgpu.vm_name == vm.name]
        if names[vm.name] != 1 or not vgpus:  # nvidia-smi names VMs, and two VMs of the host may share a name
            return VgpuUse(None, because="the nvidia-smi of its host lists no vGPU certainly its own")
        percent = most_used(vgpus)
        if percent is None:
            return VgpuUse(None, because="nvidia-smi does not report it, for example for a MIG-backed vGPU")
        return VgpuUse(percent, int(self._passed_s() - answer.answered_s))


def most_used(vgpus: Sequence[SmiVgpu]) -> int | None:
    """Return the use of the most used vGPU of a VM, in percent; None if the use of any of them is not known."""
    percentages = [vgpu.utilization_percent for vgpu in vgpus if vgpu.utilization_percent is not None]
    return max(percentages) if percentages and len(percentages) == len(vgpus) else None
