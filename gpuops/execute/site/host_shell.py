"""The way into a host itself, for what vCenter has no call for: MIG mode, health of GPUs, and how vGPUs lie on them.

Off unless somebody asks for it.
"""

from __future__ import annotations

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
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.devices.gpu_health import NOT_NAMED
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiReadings, SmiState, SmiVgpu
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef

if TYPE_CHECKING:
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.plan.core.steps import HostStep, HostTask

ASK_AGAIN_S: Final = 60.0
"""`HostsHealth` asks a host once in so long: several looks of one run follow each other in seconds."""
MOST: Final = 32
"""Questions that are open at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class HostShell(Protocol):
    """What a host's own nvidia-smi is asked. `hostshell` implements it; every method raises only gpuops errors."""

    def mig(self, host: str) -> tuple[SmiState, ...]:
        """MIG mode and health of each GPU of the host of that name. Raises Refused where it cannot be asked."""
        ...

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        """The vGPUs that run on the host of that name. Raises Refused where it cannot be asked."""
        ...

    def readings(self, host: str) -> SmiReadings:
        """How the GPUs and vGPUs of the host of that name are now. Raises Refused where it cannot be asked."""
        ...

    def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
        """Asks for MIG mode of these GPUs. Raises Refused, OutcomeUnknown when the answer was lost."""
        ...


class ShelledHosts:
    """Implements `Hosts`: vCenter's, and the shell's for what is MIG."""

    def __init__(self, hosts: Hosts, shell: HostShell, applied: Callable[[bool | None], None]) -> None:
        """`applied` is told that the shell is about to change something (None), and that it has (True)."""
        self._hosts = hosts
        self._shell = shell
        self._applied = applied

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        seen = self._hosts.with_settings(inventory, hosts)
        asked = [seen.hosts[ref] for ref in hosts if ref in seen.hosts]
        return seen.completed(hosts=ask_in_parallel(self._with_mig, asked))

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

    def held(self, hosts: Collection[str], asked: Collection[str]) -> Mapping[str, Collection[str]]:
        return self._hosts.held(hosts, asked)

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        from gpuops.plan.core.steps import ConfigureMig

        if isinstance(step, ConfigureMig):
            self._applied(None)
            self._shell.set_mig(inventory.hosts[step.host].name, step.devices, on=step.on)
            self._applied(True)
            return None
        return self._hosts.configure(step, inventory, op_id)

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        return self._hosts.submit(step, inventory, op_id)

    def find_task(self, step: HostTask) -> TaskRef | None:
        return self._hosts.find_task(step)

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        return self._hosts.wait_for_boot(since, timeout_s)


def with_vgpus(inventory: Inventory, shell: HostShell, say: Callable[[str], None], catalog: Catalog) -> Inventory:
    """The snapshot with what hosts report of the GPUs that serve vGPUs: the health of each, and where it matters how
    the vGPUs on it lie.

    The places of vGPUs are asked of hosts that have a vGPU on a GPU in MIG or mixed-size mode. What a host does not
    answer stays as vCenter tells it, and `say` is told so. Raises NotConnected.
    """
    hosts = [host for host in inventory.hosts.values() if _may_be_asked(host) or any(map(lies_somewhere, host.gpus))]
    answers = ask_in_parallel(lambda host: _ask_host(host, shell), hosts)
    places = [answer.vgpus for answer in answers if isinstance(answer.vgpus, GpuopsError)]
    unknown = dict.fromkeys(error.line for error in places)
    for line in unknown:
        say(f"where the vGPUs lie on their GPUs is not known: {line}")
    _say_unknown([answer.states for answer in answers], say, unknown)
    return inventory.completed(
        hosts=[answer.with_both(host, inventory, catalog) for host, answer in zip(hosts, answers, strict=True)]
    )


class HostsHealth:
    """Adds the health of the GPUs that serve vGPUs to snapshots, as connected hosts report it.

    A host is asked at most once in `ASK_AGAIN_S`, whether it answered or not. Without an answer the health is unknown.
    """

    def __init__(
        self, shell: HostShell, say: Callable[[str], None], passed_s: Callable[[], float] = clock.passed_s
    ) -> None:
        """`say` is told once of each reason why a host does not answer."""
        self._shell = shell
        self._say = say
        self._passed_s = passed_s
        self._answers: dict[str, tuple[float, States]] = {}
        self._said: set[str] = set()

    def __call__(self, inventory: Inventory) -> Inventory:
        """Return the snapshot with the health of its GPUs. Raises NotConnected."""
        hosts = [host for host in inventory.hosts.values() if _may_be_asked(host)]
        due = [host for host in hosts if self._is_due(host)]
        for host, states in zip(due, ask_in_parallel(lambda host: _answer(self._shell.mig, host), due), strict=True):
            self._answers[host.ref] = self._passed_s(), states
            if isinstance(states, GpuopsError) and states.line not in self._said:
                self._said.add(states.line)
                self._say(f"the health of GPUs is not known: {states.line}")
        return inventory.completed(hosts=[_with_states(host, self._answers[host.ref][1]) for host in hosts])

    def _is_due(self, host: Host) -> bool:
        answer = self._answers.get(host.ref)
        return answer is None or self._passed_s() - answer[0] >= ASK_AGAIN_S


States = Sequence[SmiState] | GpuopsError


@dataclass(frozen=True, slots=True)
class _HostAnswer:
    """What one host answered; an error where it did not."""

    states: States | None
    """None = it was not asked."""
    vgpus: Sequence[SmiVgpu] | GpuopsError

    def with_both(self, host: Host, inventory: Inventory, catalog: Catalog) -> Host:
        host = _with_states(host, self.states) if self.states is not None else host
        return host if isinstance(self.vgpus, GpuopsError) else _with_told(host, self.vgpus, inventory, catalog)


def _ask_host(host: Host, shell: HostShell) -> _HostAnswer:
    vgpus = _answer(shell.vgpus, host) if _has_places(host) else ()
    return _HostAnswer(_answer(shell.mig, host) if _may_be_asked(host) else None, vgpus)


def _may_be_asked(host: Host) -> bool:
    """Whether it is connected and has GPUs for vGPUs whose health is not known yet."""
    return host.connected is True and any(_is_shared(gpu) and gpu.health is None for gpu in host.gpus)


def _has_places(host: Host) -> bool:
    """Whether a VM is on a GPU on which vGPUs lie at places of their own."""
    return any(gpu.vms and lies_somewhere(gpu) for gpu in host.gpus)


def _say_unknown(answers: Sequence[States | None], say: Callable[[str], None], already: Collection[str] = ()) -> None:
    for line in dict.fromkeys(answer.line for answer in answers if isinstance(answer, GpuopsError)):
        if line not in already:
            say(f"the health of GPUs is not known: {line}")


def _is_shared(gpu: PhysicalGpu) -> bool:
    return gpu.graphics_type is GraphicsType.SHARED_DIRECT and not gpu.is_active_in_passthrough


def _with_states(host: Host, states: States) -> Host:
    """The host with the health of its GPUs; unknown if nvidia-smi did not answer.

    A GPU that serves vGPUs, so that the driver must have it, and that an answer about other GPUs lacks counts as lost:
    not every nvidia-smi may name a lost one.
    """
    health = {} if isinstance(states, GpuopsError) else {state.address: state.health for state in states}
    gpus = []
    for gpu in host.gpus:
        absent = NOT_NAMED if health and _is_shared(gpu) else None
        gpus.append(replace(gpu, health=health.get(gpu.address, absent)))
    return replace(host, gpus=tuple(gpus))


def lies_somewhere(gpu: PhysicalGpu) -> bool:
    """Whether the GPU is in a mode in which a vGPU lies at one of several places of it."""
    return gpu.vgpu_mode in (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)


def _answer(ask: Callable[[str], R], host: Host) -> R | GpuopsError:
    try:
        return ask(host.name)
    except NotConnected:
        raise
    except GpuopsError as error:
        return error


def _with_told(host: Host, told: Sequence[SmiVgpu], inventory: Inventory, catalog: Catalog) -> Host:
    """The host with each vGPU on its GPUs. A VM is known by its name among those that vCenter lists on the GPU."""
    gpus = []
    for gpu in host.gpus:
        refs = {inventory.vms[ref].name: ref for ref in gpu.vms or () if ref in inventory.vms}
        here = [each for each in told if each.gpu == gpu.address]
        known = len(refs) == len(gpu.vms or ()) and all(each.vm_name in refs for each in here)
        if lies_somewhere(gpu) and gpu.vms is not None and known:
            vgpus = tuple(
                VgpuPlacement(refs[each.vm_name], each.profile, _start_of(each, gpu, catalog)) for each in here
            )
            gpus.append(replace(gpu, vgpus=vgpus))
        else:
            gpus.append(gpu)
    return replace(host, gpus=tuple(gpus))


def _start_of(vgpu: SmiVgpu, gpu: PhysicalGpu, catalog: Catalog) -> int | None:
    """Where it lies, in the memory slices of the catalogue.

    nvidia-smi may count in others: an instance 1g of an RTX PRO 6000 is one of four slices, or three of twelve.
    """
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    profile = catalog.profile(vgpu.profile)
    instance = instance_of(board, profile) if board is not None and profile is not None else None
    if vgpu.start is None or not vgpu.instance_slices or instance is None:
        return vgpu.start
    start, rest = divmod(vgpu.start * instance.memory_slices, vgpu.instance_slices)
    return vgpu.start if rest else start


def ask_in_parallel(ask: Callable[[T], R], asked: Sequence[T]) -> list[R]:
    """The answer of each, in order: one that does not answer does not delay the others. Raises what the first of them
    raised, once all have ended."""
    waiting: SimpleQueue[int] = SimpleQueue()
    answers: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                answers[number] = ask(asked[number])
            except BaseException as error:
                errors[number] = error

    for number in range(len(asked)):
        waiting.put(number)
    # daemons: Ctrl-C does not wait for a host that is silent
    threads = [Thread(target=work, name=f"at-once-{number}", daemon=True) for number in range(min(MOST, len(asked)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(asked))]
