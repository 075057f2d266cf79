"""What a step was predicted to do, and where vCenter then did something else: a *misprediction*.

A prediction is made on the last look before the request, and kept in the journal with it. It is compared with the look
that settles the step. Three answers are possible: right, wrong, and *cannot say*, where vCenter does not tell it or
where somebody else changed the VM or its host in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.stored import stored_as


class Predicted(StrEnum):
    """What of a step is predicted."""

    ADMISSION = "admission"
    """Whether vCenter does it, or refuses it."""
    GPU = "gpu"
    """The physical GPUs that the VM gets, and with them their NUMA nodes."""
    MIG_START = "mig start"
    """Where the vGPU lies on its GPU: the first memory slice of its GPU instance, or its placement id (GB)."""
    DURATION = "duration"
    """How long the task runs at the most, where the plan states that."""
    FREE_AFTER = "free after"
    """What the host has free when it is done."""
    EFFECT = "effect"
    """Whether what was set is shown afterwards."""


@stored_as("PredictedGpu", address="address", numa_node="numa_node", starts="starts")
@dataclass(frozen=True, slots=True)
class PredictedGpu:
    """One GPU that a VM is to be on."""

    address: PciAddress
    numa_node: int | None = None
    """None = the host does not tell it."""
    starts: tuple[int, ...] | None = None
    """Of the VM's vGPUs on it, in ascending order; None = not known, or its mode has none."""

    def __str__(self) -> str:
        return f"{self.address}" + (f" (NUMA node {self.numa_node})" if self.numa_node is not None else "")


@stored_as(
    "Prediction",
    admitted="admitted",
    refusal="refusal",
    host="host",
    gpus="gpus",
    seconds_at_most="seconds_at_most",
    free_after="free_after",
)
@dataclass(frozen=True, slots=True)
class Prediction:
    """What one step is predicted to do. None = nothing is predicted of that."""

    admitted: bool | None = None
    refusal: str = ""
    """Why it is not admitted, by our rules; empty = it is, or that is not known."""
    host: str | None = None
    """Managed object id of the host that it is about."""
    gpus: tuple[PredictedGpu, ...] | None = None
    """By PCI address, those that the VM is on afterwards."""
    seconds_at_most: float | None = None
    """What the task takes at the most: the plan goes by it."""
    free_after: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By `GPUs` or the name of a vGPU profile, how many of them are free on the host afterwards."""


@stored_as("Misprediction", what="what", predicted="predicted", found="found", facts="facts")
@dataclass(frozen=True, slots=True)
class Misprediction:
    """One difference between what was predicted and what vCenter did."""

    what: Predicted
    predicted: str
    found: str
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the prediction went by, by its name: `profiles`, `mode of GPU 0000:3b:00.0`, `assignment policy`."""


class Comparison(StrEnum):
    """What comparing a prediction came to."""

    RIGHT = "right"
    WRONG = "wrong"
    CANNOT_SAY = "cannot say"


@stored_as("Compared", wrong="wrong", cannot_say="cannot_say")
@dataclass(frozen=True, slots=True)
class Compared:
    """A prediction beside what vCenter did."""

    wrong: tuple[Misprediction, ...] = ()
    cannot_say: str = ""
    """Why it cannot be said; empty = it can."""

    @property
    def comparison(self) -> Comparison:
        if self.wrong:
            return Comparison.WRONG
        return Comparison.CANNOT_SAY if self.cannot_say else Comparison.RIGHT


@dataclass(frozen=True, slots=True)
class PastMisprediction:
    """A misprediction as the journal keeps it: with the run, the step and the VM or host that it is of."""

    vcenter: str
    run: str
    run_kind: str
    """As it is typed: `rotate night`."""
    night: str | None
    op_id: str
    at: datetime
    step: str
    """`start`, `resume`, `suspend`, `move`, `change`, `setting`."""
    ref: str
    """Managed object id of its VM or host."""
    name: str
    """Of that VM or host, as it was then."""
    host: str | None
    """Managed object id of the host; None = not known."""
    found: Misprediction


@dataclass(frozen=True, slots=True)
class PastPredictions:
    """All predictions in a journal."""

    journal: str
    """The file, or the database without its password."""
    wrong: tuple[PastMisprediction, ...] = ()
    """Oldest first."""
    right: int = 0
    """So many steps did what was predicted of them."""
    cannot_say: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By reason, of how many steps it cannot be said."""

    @property
    def wrong_steps(self) -> int:
        """How many steps have a misprediction; one step may have several."""
        return len({(each.vcenter, each.op_id) for each in self.wrong})
