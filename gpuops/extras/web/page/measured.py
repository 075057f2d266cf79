"""What GPUs and VMs do and did, as records of the page: sums over GPUs, and series short enough for a small chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import numpy as np

from gpuops.extras.observe.stored_gpu_use import (
    HOURS_PER_STEP,
    FragmentationHistory,
    GpuHistory,
    GpuKey,
    Numbers,
    StoredUse,
)
from gpuops.model.measurements.measurement import MeasuredUse
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.scope import cluster_name
from gpuops.report.document import DocumentRecord, Moment

MOST_GPUS: Final = 400
"""Up to so many GPUs have their own history in the page; of more, hosts and clusters have one (1 MB for 400 GPUs)."""

Series = Annotated[list[int | None] | None, "a number for each step; null = not measured, as a whole or in a step"]


class MeasuredGpuRecord(DocumentRecord, frozen=True):
    """What a GPU does in the newest five minutes; null = not measured."""

    utilization_percent: float | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: int | None
    power_limit_w: Annotated[int | None, "in force; this and the following by the nvidia-smi of its host"]
    clock_mhz: Annotated[int | None, "of its streaming multiprocessors"]
    ecc_uncorrected: Annotated[int | None, "memory errors since the host's last boot that were not corrected"]
    slowed_by_heat: bool | None
    slowed_by_power: bool | None


class MeasuredVmRecord(DocumentRecord, frozen=True):
    """What a VM uses of its vGPUs in the newest five minutes; null = not measured."""

    utilization_percent: float | None
    memory_used_mib: int | None


class UseSeriesRecord(DocumentRecord, frozen=True):
    """The history of one GPU, or of the GPUs of a host or cluster that were measured."""

    utilization_percent: Annotated[Series, "the mean over GPUs"]
    memory_percent: Annotated[Series, "of the frame buffer; the mean over GPUs"]
    power_w: Annotated[Series, "the sum over GPUs"]
    temperature_c: Annotated[Series, "of the hottest GPU"]
    slowed: Annotated[Series, "how many GPUs were clocked down at a reading, because of heat or for want of power"]


class FragmentationSeriesRecord(DocumentRecord, frozen=True):
    """The history of a cluster's free GPU memory that VMs could not use."""

    percent: Annotated[Series, "of the free memory, what the average VM could not use (F of FGD)"]
    unusable_gpus_percent: Annotated[Series, "of the GPUs with free memory, those that could take no waiting VM"]


class UseHistoryRecord(DocumentRecord, frozen=True):
    """A week of GPU use, by name of the cluster (empty = standalone hosts), by host, and by host and GPU."""

    begin: Moment
    step_s: int
    clusters: dict[str, UseSeriesRecord]
    fragmentation: Annotated[dict[str, FragmentationSeriesRecord], "by name of the cluster, as `clusters`"]
    hosts: Annotated[dict[str, UseSeriesRecord], "by managed object id"]
    gpus: Annotated[
        dict[str, UseSeriesRecord] | None, "by the host's managed object id, a space and the address; null = too many"
    ]


class MeasuredFleetRecord(DocumentRecord, frozen=True):
    """What `gpuops observe` has stored of this vCenter."""

    until: Annotated[Moment, "of the last observation"]
    gpus: Annotated[
        dict[str, MeasuredGpuRecord] | None,
        "by the host's managed object id, a space and the address; null = the last observation is an hour old or more",
    ]
    vms: Annotated[dict[str, MeasuredVmRecord] | None, "by managed object id; null = as above"]
    history: UseHistoryRecord


def measured_record(stored: StoredUse, inventory: Inventory) -> MeasuredFleetRecord:
    """Return the stored numbers of GPUs and VMs that are still in the inventory. None = there is no recent sample."""
    now = stored.now
    gpus = [(host.ref, gpu.address) for host in inventory.hosts.values() for gpu in host.gpus]
    return MeasuredFleetRecord(
        until=Moment(stored.newest.until.isoformat()),
        gpus=None
        if now is None
        else {_key(gpu): MeasuredGpuRecord.from_attributes(now.gpus[gpu]) for gpu in gpus if gpu in now.gpus},
        vms=None
        if now is None
        else {
            ref: MeasuredVmRecord(use.utilization_percent, use.memory_used_mib)
            for ref, use in sorted(now.vms.items())
            if ref in inventory.vms and use != MeasuredUse()  # a VM without any number is left out
        },
        history=_history(stored, inventory),
    )


def _key(gpu: GpuKey) -> str:
    return f"{gpu[0]} {gpu[1]}"


def _history(stored: StoredUse, inventory: Inventory) -> UseHistoryRecord:
    """Return a series for each cluster, host and GPU; none for GPUs if more than `MOST_GPUS` were measured."""
    sizes = {(host.ref, gpu.address): gpu.memory_mib for host in inventory.hosts.values() for gpu in host.gpus}
    gpus_by_host: dict[str, list[GpuKey]] = {}
    gpus_by_cluster: dict[str, list[GpuKey]] = {}
    for gpu in stored.history:
        if gpu in sizes:
            gpus_by_host.setdefault(gpu[0], []).append(gpu)
            gpus_by_cluster.setdefault(cluster_name(inventory.hosts[gpu[0]], inventory) or "", []).append(gpu)

    def series_of(gpus: Iterable[GpuKey]) -> UseSeriesRecord:
        return _series([(stored.history[gpu], sizes[gpu]) for gpu in gpus])

    measured_gpus = sorted((gpu for gpus in gpus_by_host.values() for gpu in gpus), key=_key)
    return UseHistoryRecord(
        begin=Moment(stored.begin.isoformat()),
        step_s=HOURS_PER_STEP * 3600,
        clusters={name: series_of(gpus) for name, gpus in sorted(gpus_by_cluster.items())},
        fragmentation=_fragmentation(stored, inventory),
        hosts={ref: series_of(gpus) for ref, gpus in sorted(gpus_by_host.items())},
        gpus={_key(gpu): series_of([gpu]) for gpu in measured_gpus} if len(measured_gpus) <= MOST_GPUS else None,
    )


def _fragmentation(stored: StoredUse, inventory: Inventory) -> dict[str, FragmentationSeriesRecord]:
    """Return the shares of each cluster, by the sums over its hosts."""
    by_cluster: dict[str, list[FragmentationHistory]] = {}
    for ref, history in stored.fragmentation.items():
        if ref in inventory.hosts:
            by_cluster.setdefault(cluster_name(inventory.hosts[ref], inventory) or "", []).append(history)
    return {
        name: FragmentationSeriesRecord(
            percent=_shares([host.fragmented_mib for host in hosts], [host.free_mib for host in hosts]),
            unusable_gpus_percent=_shares(
                [host.unusable_gpus for host in hosts if host.unusable_gpus is not None],
                [host.free_gpus for host in hosts if host.unusable_gpus is not None],
            ),
        )
        for name, hosts in sorted(by_cluster.items())
    }


def _shares(parts: list[Numbers], wholes: list[Numbers]) -> list[int | None] | None:
    """Return in percent, for each step, the sum of the parts in the sum of the wholes; 0 of nothing is 0."""
    part_sums, whole_sums = _combined(parts, "sum"), _combined(wholes, "sum")
    if part_sums is None or whole_sums is None:
        return None
    pairs = zip(part_sums, whole_sums, strict=True)
    return [None if part is None or whole is None else round(100 * part / max(1, whole)) for part, whole in pairs]


def _series(gpus: list[tuple[GpuHistory, int | None]]) -> UseSeriesRecord:
    """Return the series of these GPUs together; each comes with its memory in MiB, None = unknown."""
    memory = [history.memory_mib / size * 100 for history, size in gpus if history.memory_mib is not None and size]
    return UseSeriesRecord(
        utilization_percent=_combined([history.utilization_percent for history, _ in gpus], "mean"),
        memory_percent=_combined(memory, "mean"),
        power_w=_combined([history.power_w for history, _ in gpus], "sum"),
        temperature_c=_combined([history.temperature_c for history, _ in gpus], "highest"),
        slowed=_combined([history.slowed for history, _ in gpus], "sum"),
    )


def _combined(series: Iterable[Numbers | None], how: str) -> list[int | None] | None:
    """Return a rounded number for each step: the mean, sum or highest (`how`) of the GPUs measured in that step.

    None stands for a step in which no GPU was measured, or for the whole series if there is none.
    """
    measured = [numbers for numbers in series if numbers is not None]
    if not measured:
        return None
    table = np.stack(measured)  # a row for each GPU, a column for each step; NaN = not measured
    is_known = ~np.isnan(table)
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, table, 0).sum(axis=0)
    combined: Mapping[str, Numbers] = {
        "mean": sums / np.maximum(counts, 1),
        "sum": sums,
        "highest": np.where(is_known, table, 0).max(axis=0),
    }
    return [round(float(number)) if count else None for number, count in zip(combined[how], counts, strict=True)]
