"""The way into a host itself, for what vCenter has no call for: MIG mode, and how vGPUs lie on their GPUs.

Off unless somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from gpuops.advise.capacity import instance_of
from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.site.ports import Hosts
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiReadings, SmiState, SmiVgpu
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef

if TYPE_CHECKING:
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.plan.core.host_steps import HostStep, HostTask

MOST: Final = 32
"""Questions that are open at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class HostShell(Protocol):
    """What a host's own nvidia-smi is asked. `hostshell` implements it; every method raises only gpuops errors."""

    def mig(self, host: str) -> tuple[SmiState, ...]:
        """MIG mode of each GPU of the host of that name. Raises Refused where it cannot be asked."""
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
        told = ask_in_parallel(lambda host: self._with_mig(host.name, host.settings), asked)
        return seen.completed(hosts=[replace(host, settings=mig) for host, mig in zip(asked, told, strict=True)])

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return self._hosts.with_other_devices(inventory, hosts)

    def _with_mig(self, name: str, settings: HostSettings | None) -> HostSettings:
        known = settings or HostSettings()
        try:
            return replace(known, mig=self._shell.mig(name))
        except NotConnected:
            raise
        except GpuopsError as error:
            return replace(known, unread=(*known.unread, f"{UNASKED}{error.line}"))

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return self._hosts.with_devices(inventory, hosts)

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        return self._hosts.lacking(needed)

    def held(self, hosts: Collection[str], asked: Collection[str]) -> Mapping[str, Collection[str]]:
        return self._hosts.held(hosts, asked)

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        from gpuops.plan.core.host_steps import ConfigureMig

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
    """The snapshot with what hosts tell of the vGPUs on their GPUs, where it matters how these lie.

    Asked are the hosts that have a vGPU on a GPU in MIG or mixed-size mode. One that does not answer stays as vCenter
    tells it, and `say` is told so. Raises NotConnected.
    """
    meant = [host for host in inventory.hosts.values() if any(map(lies_somewhere, host.gpus))]
    asked = [host for host in meant if any(gpu.vms and lies_somewhere(gpu) for gpu in host.gpus)]
    answers = ask_in_parallel(lambda host: _vgpus_of(host, shell), asked)
    told = {host.ref: answer for host, answer in zip(asked, answers, strict=True)}
    for answer in answers:
        if isinstance(answer, GpuopsError):
            say(f"where the vGPUs lie on their GPUs is not known: {answer.line}")
    known = ((host, told.get(host.ref, ())) for host in meant)
    return inventory.completed(
        hosts=[
            _with_told(host, answer, inventory, catalog)
            for host, answer in known
            if not isinstance(answer, GpuopsError)
        ]
    )


def lies_somewhere(gpu: PhysicalGpu) -> bool:
    """Whether the GPU is in a mode in which a vGPU lies at one of several places of it."""
    return gpu.vgpu_mode in (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)


def _vgpus_of(host: Host, shell: HostShell) -> tuple[SmiVgpu, ...] | GpuopsError:
    try:
        return shell.vgpus(host.name)
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
