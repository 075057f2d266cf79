"""Finds the GPU of each instance of a performance counter, and makes the measured use of a GPU of its counters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import (
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    SMI_CLOCK,
    SMI_ECC,
    SMI_POWER_LIMIT,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
    SMI_TEMPERATURE,
    SMI_USE,
    MeasuredUse,
)
from gpuops.model.vcenter.host import Host

Number = TypeVar("Number")

USE_COUNTERS: Final = (GPU_USE, SMI_USE)
"""The counters of a GPU's use. The first that was measured counts: vCenter's is an average, nvidia-smi's a reading."""
TEMPERATURE_COUNTERS: Final = (GPU_TEMPERATURE, SMI_TEMPERATURE)
"""The counters of a GPU's temperature. The first that was measured counts."""


def gpus_of_instances(instances: Collection[str], host: Host) -> Mapping[str, PciAddress]:
    """Return the address of the GPU of each instance; one that cannot be mapped is left out.

    Dumps of vCenters show `0000:3b:00.0`, `000:003:00.0` and `gpu-1` (vsphere-api.md, 8.1). If none is an address, they
    are the host's GPUs in the order of their numbers, provided that the host's driver has as many GPUs. A GPU in
    passthrough has no counters, because the host has no driver for it (assumption: gpu-counter-instances).
    """
    # the empty instance holds the numbers of the whole host
    addresses = {instance: PciAddress.parse_or_none(instance) for instance in instances if instance}
    if any(address is not None for address in addresses.values()):
        on_host = {gpu.address for gpu in host.gpus}
        return {
            instance: address for instance, address in addresses.items() if address is not None and address in on_host
        }
    with_driver = [gpu.address for gpu in host.gpus if gpu.passthrough is None or not gpu.passthrough.active]
    if len(addresses) != len(with_driver):
        return {}
    return dict(zip(sorted(addresses, key=_numeric_order), sorted(with_driver, key=str), strict=True))


def _numeric_order(instance: str) -> tuple[list[int], str]:
    """Return a sort key by which `gpu-2` comes before `gpu-10`."""
    return [int(number) for number in re.findall(r"\d+", instance)], instance


def numbers_by_gpu(series: Mapping[str, Number], host: Host) -> Mapping[PciAddress, Mapping[str, Number]]:
    """Return the numbers of each GPU of a host by counter, from series such as `gpu.utilization.average@gpu-1`.

    vCenter and nvidia-smi may name the same GPU differently, so their instances are mapped to GPUs separately.
    """
    # from nvidia-smi or not -> instance -> counter -> number
    by_source: dict[bool, dict[str, dict[str, Number]]] = {False: {}, True: {}}
    for name, number in series.items():
        counter, _, instance = name.partition("@")
        if instance:
            by_source[counter.startswith("smi.")].setdefault(instance, {})[counter] = number
    by_address: dict[PciAddress, dict[str, Number]] = {}
    for by_instance in by_source.values():
        for instance, address in gpus_of_instances(by_instance, host).items():
            by_address.setdefault(address, {}).update(by_instance[instance])
    return by_address


def measured_use(numbers: Mapping[str, int]) -> MeasuredUse:
    """Return the numbers of counters in the units of `MeasuredUse`: use comes in hundredths of a percent, memory in KB.

    What has no number stays None.
    """
    use = next((numbers[counter] for counter in USE_COUNTERS if counter in numbers), None)
    temperature = next((numbers[counter] for counter in TEMPERATURE_COUNTERS if counter in numbers), None)
    memory_kb = numbers.get(GPU_MEMORY)
    by_heat, by_power = numbers.get(SMI_SLOWED_BY_HEAT), numbers.get(SMI_SLOWED_BY_POWER)
    return MeasuredUse(
        utilization_percent=None if use is None else use / 100,
        memory_used_mib=None if memory_kb is None else memory_kb >> 10,
        temperature_c=temperature,
        power_w=numbers.get(GPU_POWER),
        power_limit_w=numbers.get(SMI_POWER_LIMIT),
        clock_mhz=numbers.get(SMI_CLOCK),
        ecc_uncorrected=numbers.get(SMI_ECC),
        slowed_by_heat=None if by_heat is None else bool(by_heat),
        slowed_by_power=None if by_power is None else bool(by_power),
    )
