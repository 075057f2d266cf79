"""What is asked of a pool: how busy its VMs keep a GPU, and what is allowed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.extras.sizing.pairs import PairModel
from gpuops.extras.sizing.sharing import MOST_SHARERS
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.devices.shared_gpu import ObservedPair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

IDLE: Final = 0.02
"""Up to such a share of a step a VM is not at work on the GPU: an unused desktop redraws its clock."""

_SOME: Final = 1e-9


@dataclass(frozen=True, slots=True)
class BusyShares:
    """The share of its time that each VM would keep a GPU busy alone."""

    names: tuple[str, ...]
    busy: Floats
    """A row for each step of time, a column for each VM, 0 to 1; NaN = it did not run."""
    days: NDArray[np.int64]
    """For each step the number of its day."""
    kinds: tuple[str, ...] = ()
    """For each VM its workload, by which it is known to pairs; () = VMs of no known workload."""
    pairs: PairModel | None = None

    @property
    def mean(self) -> Floats:
        """Of each VM, over the steps in which it ran; 0 of one that did not."""
        running = ~np.isnan(self.busy)
        mean_shares: Floats = np.nan_to_num(self.busy).sum(axis=0) / np.maximum(running.sum(axis=0), 1)
        return mean_shares

    @property
    def at_work(self) -> NDArray[np.bool_]:
        """In which steps (rows) each VM works on the GPU; of one that hardly ever does, those above its mean."""
        works: NDArray[np.bool_] = np.nan_to_num(self.busy) >= np.maximum(np.minimum(IDLE, self.mean), _SOME)
        return works

    @property
    def working(self) -> Floats:
        """Return the mean of each VM over the steps in which it works; 0 of one that never does."""
        works = self.at_work
        working_shares: Floats = np.where(works, np.nan_to_num(self.busy), 0.0).sum(axis=0) / np.maximum(
            works.sum(axis=0), 1
        )
        return working_shares

    def always_running(self) -> BusyShares:
        """Return the shares with all VMs always running: the guarantees of a scheduler must hold then too."""
        return BusyShares(self.names, np.nan_to_num(self.busy), self.days, self.kinds, self.pairs)


@dataclass(frozen=True, slots=True)
class BusyHistory:
    """How busy VMs kept their GPUs, and from how much history that is known."""

    shares: BusyShares
    hours: tuple[float, ...]
    """Of each VM of `shares`, the time of which there are samples."""
    since: datetime
    left_out: Mapping[str, str]
    """By name of a VM of which nothing can be said: why not."""
    full: float
    """In which share of the steps looked at, of VMs that share a GPU today, that GPU was full."""
    pairs: tuple[ObservedPair, ...] = ()
    """Those that were seen at work on one GPU, by the names of the VMs."""


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """What is allowed, and what the GPU holds."""

    at_most: float | None = None
    """Times as long as alone; None = nothing is recommended."""
    slots: int | None = None
    """How many vGPUs of the profile a GPU holds; None = as many as there are sharers."""
    guaranteed: bool = False
    """What is allowed must hold whatever the others do."""

    @property
    def most(self) -> int:
        return MOST_SHARERS if self.slots is None else self.slots

    @property
    def policies(self) -> tuple[SchedulerPolicy, ...]:
        """Return those that may be recommended: best effort promises nothing (NVIDIA vGPU docs)."""
        return tuple(
            policy for policy in SchedulerPolicy if policy is not SchedulerPolicy.BEST_EFFORT or not self.guaranteed
        )
