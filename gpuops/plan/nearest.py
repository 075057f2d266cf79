"""Nearest: what little less would find a place, for a workload that finds none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuops.model.numa import NumaPolicy
from gpuops.model.profile_name import near
from gpuops.model.workload import Workload
from gpuops.plan.hypothetical import unknown_profile
from gpuops.plan.trial import Placed, Trial, relaxed


def nearest(trial: Trial) -> str:
    """The first smaller wish that has a place now, and where; empty when none has. One wish is given up at a time."""
    for change, workload in (*_named_nearly(trial), *_less(trial.workload)):
        answer = relaxed(trial, workload).answer()
        if isinstance(answer, Placed):
            return f"{change} it fits on {answer.placement.host.name}"
    return ""


def _named_nearly(trial: Trial) -> Iterator[tuple[str, Workload]]:
    """Profiles whose names are nearly the one asked for, where that one means nothing."""
    workload, inventory = trial.workload, trial.inventory
    if unknown_profile(workload, inventory, trial.catalog) is not None:
        for name in near(workload.profile or "", inventory.offered_profiles):
            yield f"as {name}", replace(workload, profile=name)


def _less(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """What is dearest to give up comes last: fewer GPUs is another VM."""
    if workload.numa is NumaPolicy.REQUIRED:
        yield "with numa preferred", replace(workload, numa=NumaPolicy.PREFERRED)
    if workload.host is not None:
        yield f"on a host not named {workload.host}", replace(workload, host=None)
    if workload.cluster is not None:
        yield f"outside of cluster {workload.cluster}", replace(workload, host=None, cluster=None)
    if workload.anti_affinity is not None:
        yield f"without anti-affinity {workload.anti_affinity}", replace(workload, anti_affinity=None)
    for fewer in range(workload.count - 1, 0, -1):
        yield f"with {fewer} of its {workload.count} vGPUs", replace(workload, count=fewer)
    for fewer in range(workload.gpus - 1, 0, -1):
        yield f"with {fewer} of its {workload.gpus} GPUs", replace(workload, gpus=fewer)
