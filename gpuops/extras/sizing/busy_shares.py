"""The busy shares of a pool of VMs, and the limits of the answer. Pure."""

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
"""A VM that uses the GPU for no more than this share of a step is not at work: an unused desktop redraws its clock."""

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
    """The workload of each VM, by which `pairs` knows it; empty = unknown."""
    pairs: PairModel | None = None

    @property
    def mean(self) -> Floats:
        """Return the mean of each VM over the steps in which it ran; 0 if it never ran."""
        running = ~np.isnan(self.busy)
        mean_shares: Floats = np.nan_to_num(self.busy).sum(axis=0) / np.maximum(running.sum(axis=0), 1)
        return mean_shares

    @property
    def at_work(self) -> NDArray[np.bool_]:
        """Return whether each VM (column) works in a step (row): its use is IDLE, or its lower mean, or more."""
        works: NDArray[np.bool_] = np.nan_to_num(self.busy) >= np.maximum(np.minimum(IDLE, self.mean), _SOME)
        return works

    @property
    def working(self) -> Floats:
        """Return the mean of each VM over the steps in which it is at work; 0 if it never is."""
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
    """How busy VMs kept their GPUs, and how much history that is from."""

    shares: BusyShares
    hours: tuple[float, ...]
    """The hours with samples, for each VM of `shares`."""
    since: datetime
    left_out: Mapping[str, str]
    """The reason for each VM that is left out, by its name."""
    full: float
    """The share of steps, 0 to 1, in which a GPU was full that several VMs share today."""
    pairs: tuple[ObservedPair, ...] = ()
    """Pairs that were seen at work on one GPU, by the names of the VMs."""


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """The allowed slowdown, and the number of vGPUs that a GPU holds."""

    at_most: float | None = None
    """The allowed slowdown; None = nothing is recommended."""
    slots: int | None = None
    """How many vGPUs of the profile a GPU holds; None = no limit."""
    guaranteed: bool = False
    """The allowed slowdown must hold whatever the other VMs do."""

    @property
    def most(self) -> int:
        return MOST_SHARERS if self.slots is None else self.slots

    @property
    def policies(self) -> tuple[SchedulerPolicy, ...]:
        """Return the schedulers that may be recommended: best effort guarantees nothing (NVIDIA vGPU docs)."""
        return tuple(
            policy for policy in SchedulerPolicy if policy is not SchedulerPolicy.BEST_EFFORT or not self.guaranteed
        )
