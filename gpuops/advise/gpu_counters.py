"""Which GPU of a host the instance of a performance counter is. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host


def gpus_of_instances(instances: Collection[str], host: Host) -> Mapping[str, PciAddress]:
    """Return the address of the GPU of each instance; one that cannot be mapped is left out, as is the host as a whole.

    Dumps of vCenters show `0000:3b:00.0`, `000:003:00.0` and `gpu-1` (vsphere-api.md, 8.1). Where none is an address,
    they are the host's GPUs in the order of their numbers, if there are as many as the host's driver has. A GPU in
    passthrough has no counters, because the host has no driver for it (assumption: gpu-counter-instances).
    """
    named = {instance: PciAddress.parse_or_none(instance) for instance in instances if instance}
    if any(address is not None for address in named.values()):
        of_host = {gpu.address for gpu in host.gpus}
        return {instance: address for instance, address in named.items() if address is not None and address in of_host}
    driven = [gpu.address for gpu in host.gpus if gpu.passthrough is None or not gpu.passthrough.active]
    if len(named) != len(driven):
        return {}
    return dict(zip(sorted(named, key=_numbers), sorted(driven, key=str), strict=True))


def _numbers(instance: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", instance)], instance
