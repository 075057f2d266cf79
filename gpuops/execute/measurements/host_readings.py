"""Asks the hosts' own nvidia-smi how GPUs and vGPUs are, as steps of measurements: one reading in each look.

A reading is one sample of the step of five minutes in which it is made, and covers a fifteenth of it. What nvidia-smi
does not tell is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpuops.errors import GpuopsError
from gpuops.execute.measurements.packing import Block
from gpuops.execute.site.host_shell import HostShell, ask_in_parallel
from gpuops.model.measurements.measurement import SMI_GPU_COUNTERS, SMI_POWER_LIMIT, SMI_VM_COUNTERS

if TYPE_CHECKING:
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.host_settings import SmiGpu, SmiReadings, SmiVgpu
    from gpuops.model.vcenter.inventory import Inventory


def host_readings(shell: HostShell, inventory: Inventory, say: Callable[[str], None]) -> tuple[dict[str, Block], int]:
    """Return one step for each VM and host (ids) with a reading, and how many hosts answered.

    Asked are connected hosts with GPUs, several at once; one that does not answer is said, and missing.
    """
    asked = [host for host in inventory.hosts.values() if host.connected is True and host.gpus]
    answers = ask_in_parallel(lambda host: _asked(shell, host), asked)
    blocks: dict[str, Block] = {}
    told = 0
    for host, answer in zip(asked, answers, strict=True):
        if isinstance(answer, GpuopsError):
            say(f"not measured by its nvidia-smi: {answer.line}")
            continue
        told += 1
        blocks |= _blocks(host, answer, inventory)
    return blocks, told


def _asked(shell: HostShell, host: Host) -> SmiReadings | GpuopsError:
    try:
        return shell.readings(host.name)
    except GpuopsError as error:
        return error


def _blocks(host: Host, readings: SmiReadings, inventory: Inventory) -> Iterator[tuple[str, Block]]:
    """Yield the steps of the host and of its VMs; nvidia-smi knows VMs by name, so the name must be unique there."""
    of_host = {f"{name}@{gpu.address}": value for gpu in readings.gpus for name, value in _gpu(gpu)}
    yield from _step(host.ref, of_host)
    here = inventory.vms_by_host.get(host.ref, ())
    names = Counter(vm.name for vm in here)
    for vm in here:
        vgpus = [each for each in readings.vgpus if each.vm_name == vm.name]
        if vgpus and names[vm.name] == 1:
            yield from _step(vm.ref, dict(zip(SMI_VM_COUNTERS, _vgpus(vgpus), strict=True)))


def _gpu(gpu: SmiGpu) -> Iterator[tuple[str, int | None]]:
    values = (
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
    return zip((*SMI_GPU_COUNTERS, SMI_POWER_LIMIT), values, strict=True)


def _vgpus(vgpus: list[SmiVgpu]) -> tuple[int | None, int | None, int | None]:
    """Return use, encoder and licence of a VM's vGPUs; a number is known if it is known of each vGPU."""
    used = [_hundredths(each.utilization_percent) for each in vgpus]
    encoded = [_hundredths(each.encoder_percent) for each in vgpus]
    licensed = [each.licensed for each in vgpus]
    return _most(used), _most(encoded), None if None in licensed else int(all(licensed))


def _most(values: list[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return max(known) if len(known) == len(values) else None


def _hundredths(percent: int | None) -> int | None:
    return None if percent is None else percent * 100


def _step(entity: str, values: Mapping[str, int | None]) -> Iterator[tuple[str, Block]]:
    series = {
        name: np.array([[value, value, 1]], dtype=np.int64) for name, value in values.items() if value is not None
    }
    if series:
        yield entity, Block(1, series)
