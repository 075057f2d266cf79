"""Asks the hosts' own nvidia-smi how much the vGPUs of desktops are used, for a snapshot on which is then decided."""

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
"""A host is asked once in so long: a night looks at each of its desktops alone. One that did not answer rests, too."""


class VgpuShell(Protocol):
    """The nvidia-smi of hosts, as far as it is asked here. It raises only gpuops errors."""

    def vgpu_use(self, host: str) -> tuple[SmiVgpu, ...]:
        """The vGPUs that run on the host of that name, and how much they are used now."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    told_s: float
    vgpus: tuple[SmiVgpu, ...]
    failed: str = ""


class HostsVgpuUse:
    """Implements `VgpuUseSource` by the hosts themselves, several at once; an answer is used again for a minute.

    nvidia-smi knows a VM by its name alone: where two of its host have one name, nothing is told of either.
    """

    def __init__(
        self, shell: VgpuShell, say: Callable[[str], None], passed_s: Callable[[], float] = clock.passed_s
    ) -> None:
        """`say` is told once of each way in which a host does not answer."""
        self._shell = shell
        self._say = say
        self._passed_s = passed_s
        self._answers: dict[str, _Answer] = {}
        self._said: set[str] = set()

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        hosts = {ref: inventory.hosts[ref] for vm in vms if (ref := vm.host or "") in inventory.hosts}
        due = [host for host in hosts.values() if host.connected is True and self._is_due(host)]
        for host, answer in zip(due, ask_in_parallel(self._asked, due), strict=True):
            self._answers[host.ref] = answer
            if answer.failed and answer.failed not in self._said:
                self._said.add(answer.failed)
                self._say(f"the use of vGPUs is not known: {answer.failed}")
        return {vm.ref: self._of(vm, inventory) for vm in vms}

    def _is_due(self, host: Host) -> bool:
        answer = self._answers.get(host.ref)
        return answer is None or self._passed_s() - answer.told_s >= ASK_AGAIN_S

    def _asked(self, host: Host) -> _Answer:
        try:
            vgpus = self._shell.vgpu_use(host.name)
        except GpuopsError as error:
            return _Answer(self._passed_s(), (), error.message)
        return _Answer(self._passed_s(), vgpus)

    def _of(self, vm: Vm, inventory: Inventory) -> VgpuUse:
        answer = self._answers.get(vm.host or "")
        if answer is None:
            return VgpuUse(None, because="its host is not connected, or not known")
        if answer.failed:
            return VgpuUse(None, because="the nvidia-smi of its host does not answer")
        names = Counter(each.name for each in inventory.vms_by_host.get(vm.host or "", ()))
        vgpus = [each for each in answer.vgpus if each.vm_name == vm.name]
        if names[vm.name] != 1 or not vgpus:
            return VgpuUse(None, because="the nvidia-smi of its host knows no vGPU of it alone")
        percent = most_used(vgpus)
        if percent is None:
            return VgpuUse(None, because="nvidia-smi does not tell it, as of a MIG-backed vGPU")
        return VgpuUse(percent, int(self._passed_s() - answer.told_s))


def most_used(vgpus: Sequence[SmiVgpu]) -> int | None:
    """How much the one of a VM's vGPUs is used that is used most, in percent; None = it is not known of each."""
    known = [each.utilization_percent for each in vgpus if each.utilization_percent is not None]
    return max(known) if known and len(known) == len(vgpus) else None
