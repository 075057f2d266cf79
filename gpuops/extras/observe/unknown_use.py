"""Removes the counters of GPUs of VMs whose GPU use is unknown. Pure.

A vGPU whose use is not measured shows 0 (VMware KB 319982), and a MIG-backed vGPU has no counter. Such a 0 does not
mean that the GPU is idle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuops.extras.observe.packing import MISSING
from gpuops.model.devices.profile_name import parse
from gpuops.model.measurements.measurement import GPU_MEMORY, OF_GPUS, Samples
from gpuops.model.vcenter.vm import Vm


def without_unknown_use(vm: Vm, samples: Samples) -> Samples:
    """Return the samples of a VM as far as they are known.

    All GPU counters are removed for a VM without a vGPU or with a MIG-backed vGPU. For other VMs a 0 is kept if GPU
    memory is in use in the same sample: a guest with a running driver always uses some (our inference).
    """
    if not any(name.startswith(OF_GPUS) for name in samples.values):
        return samples
    other_series = {name: numbers for name, numbers in samples.values.items() if not name.startswith(OF_GPUS)}
    if not vm.profiles or any(_is_mig_backed(profile) for profile in vm.profiles):
        return replace(samples, values=other_series)
    memory = samples.values.get(GPU_MEMORY)
    in_use = memory > 0 if memory is not None else np.zeros(len(samples.ends), dtype=bool)
    believed = {
        name: np.where(in_use | (numbers > 0), numbers, MISSING)
        for name, numbers in samples.values.items()
        if name.startswith(OF_GPUS)
    }
    return replace(samples, values=other_series | believed)


def _is_mig_backed(profile: str) -> bool:
    parsed_name = parse(profile)
    return parsed_name is not None and parsed_name.slices is not None
