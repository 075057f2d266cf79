"""Reads GPUs and vGPUs by the hosts' own nvidia-smi, as steps of measurements, once in each cycle.

A reading is one sample in its step of five minutes and covers a fifteenth of it. Numbers that nvidia-smi does not
report are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpuops.errors import GpuopsError
from gpuops.execute.site.host_shell import HostShell, ask_in_parallel
from gpuops.extras.observe.packing import Block
from gpuops.model.measurements.measurement import SMI_GPU_COUNTERS, SMI_POWER_LIMIT, SMI_VM_COUNTERS

if TYPE_CHECKING:
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.host_settings import SmiGpu, SmiReadings, SmiVgpu
    from gpuops.model.vcenter.inventory import Inventory


def host_readings(shell: HostShell, inventory: Inventory, say: Callable[[str], None]) -> tuple[dict[str, Block], int]:
    """Return one step for each VM and host (ids) with a reading, and how many hosts answered.

    Asks all connected hosts with GPUs, several at once. A host that does not answer is reported by `say` and left out.
    """
    hosts = [host for host in inventory.hosts.values() if host.connected is True and host.gpus]
    answers = ask_in_parallel(lambda host: _read_host(shell, host), hosts)
    blocks: dict[str, Block] = {}
    answered_hosts = 0
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, GpuopsError):
            say(f"not measured by its nvidia-smi: {answer.line}")
            continue
        answered_hosts += 1
        blocks |= _blocks(host, answer, inventory)
    return blocks, answered_hosts


def _read_host(shell: HostShell, host: Host) -> SmiReadings | GpuopsError:
    try:
        return shell.readings(host.name)
    except GpuopsError as error:
        return error


def _blocks(host: Host, readings: SmiReadings, inventory: Inventory) -> Iterator[tuple[str, Block]]:
    """Yield the steps of the host and of its VMs; nvidia-smi knows VMs by name, so the name must be unique there."""
    of_host = {f"{name}@{gpu.address}": number for gpu in readings.gpus for name, number in _gpu(gpu)}
    yield from _step(host.ref, of_host)
    host_vms = inventory.vms_by_host.get(host.ref, ())
    names = Counter(vm.name for vm in host_vms)
    for vm in host_vms:
        vgpus = [vgpu for vgpu in readings.vgpus if vgpu.vm_name == vm.name]
        if vgpus and names[vm.name] == 1:
            yield from _step(vm.ref, dict(zip(SMI_VM_COUNTERS, _vgpus(vgpus), strict=True)))


def _gpu(gpu: SmiGpu) -> Iterator[tuple[str, int | None]]:
    numbers = (
        _hundredths(gpu.utilization_percent),
        gpu.clock_mhz,
        gpu.temperature_c,
        gpu.ecc_uncorrected,
        gpu.pcie_generation,
        gpu.pcie_width,
        gpu.slowed_by_heat,
        gpu.slowed_by_power,
        gpu.power_limit_w,
    )
    return zip((*SMI_GPU_COUNTERS, SMI_POWER_LIMIT), numbers, strict=True)


def _vgpus(vgpus: list[SmiVgpu]) -> tuple[int | None, int | None, int | None]:
    """Return use, encoder use and licence of a VM's vGPUs; None if a number is unknown for one of the vGPUs."""
    use = [_hundredths(vgpu.utilization_percent) for vgpu in vgpus]
    encoder_use = [_hundredths(vgpu.encoder_percent) for vgpu in vgpus]
    licence_states = [vgpu.licensed for vgpu in vgpus]
    return (
        _most_of_known(use),
        _most_of_known(encoder_use),
        None if None in licence_states else int(all(licence_states)),
    )


def _most_of_known(numbers: list[int | None]) -> int | None:
    known_numbers = [number for number in numbers if number is not None]
    return max(known_numbers) if len(known_numbers) == len(numbers) else None


def _hundredths(percent: int | None) -> int | None:
    return None if percent is None else percent * 100


def _step(entity: str, numbers: Mapping[str, int | None]) -> Iterator[tuple[str, Block]]:
    series = {
        name: np.array([[number, number, 1]], dtype=np.int64) for name, number in numbers.items() if number is not None
    }
    if series:
        yield entity, Block(1, series)
