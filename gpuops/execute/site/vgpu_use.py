"""Read the use of desktops' vGPUs from nvidia-smi on their hosts, into a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gpuops import clock
from gpuops.errors import GpuopsError
from gpuops.execute.site.host_shell import ask_in_parallel
from gpuops.model.desktops.evidence import VgpuUse

if TYPE_CHECKING:
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.host_settings import SmiVgpu
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

ASK_AGAIN_S: Final = 60.0
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
        return answer is None or self._passed_s() - answer.answered_s >= ASK_AGAIN_S

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
