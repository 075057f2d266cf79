"""Leaves out what counters of GPUs say of VMs of whose GPU nothing is known. Pure.

A vGPU whose use nobody measures shows 0 (VMware KB 319982), and a MIG-backed one has no counter: such a 0 is not idle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuops.execute.measurements.packing import MISSING
from gpuops.model.devices.profile_name import parse
from gpuops.model.measurements.measurement import GPU_MEMORY, OF_GPUS, Samples
from gpuops.model.vcenter.vm import Vm


def without_unknown_use(vm: Vm, samples: Samples) -> Samples:
    """The samples of a VM as far as they are known.

    Of a VM without a vGPU, and of one with a MIG-backed vGPU, no counter of GPUs is believed. Of any other a 0 is where
    the same sample says that GPU memory is in use: a guest whose driver runs always uses some (our inference).
    """
    if not any(name.startswith(OF_GPUS) for name in samples.values):
        return samples
    others = {name: values for name, values in samples.values.items() if not name.startswith(OF_GPUS)}
    if not vm.profiles or any(_is_mig_backed(profile) for profile in vm.profiles):
        return replace(samples, values=others)
    memory = samples.values.get(GPU_MEMORY)
    in_use = memory > 0 if memory is not None else np.zeros(len(samples.ends), dtype=bool)
    believed = {
        name: np.where(in_use | (values > 0), values, MISSING)
        for name, values in samples.values.items()
        if name.startswith(OF_GPUS)
    }
    return replace(samples, values=others | believed)


def _is_mig_backed(profile: str) -> bool:
    found = parse(profile)
    return found is not None and found.slices is not None
