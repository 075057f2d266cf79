"""What a pool is asked and answers: a geometry of GPUs, a VM, and the seat found for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Geometry(Protocol):
    """What GPUs can be. States and kinds of device are small whole numbers; state 0 = no GPU there."""

    ways: int
    """The most states that one more device can lead to."""

    def after(self, state: int, kind: int) -> Sequence[int]:
        """The states that one more device of the kind may lead to; none = there is no room."""

    def slots(self, state: int, kind: int) -> int:
        """How many more devices of the kind fit."""

    def usable(self, state: int, kind: int) -> int:
        """How much of what is free devices of the kind can use."""

    def value(self, state: int) -> int:
        """What the best filling of what is free sells for at the site's prices, in thousandths."""

    def free(self, state: int) -> int:
        """GPU memory that is free."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A VM: so many devices of a kind, and CPU and memory beside them. No device = anywhere."""

    kind: int
    count: int
    cpu: int
    memory: int
    models: int = -1
    """Bit mask of the models of nodes that will do."""
    beside: bool = True
    """Whether CPU and memory must be on the node of the GPUs; else what the node lacks comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a VM takes of one node."""

    row: int
    gpus: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a VM goes. `local`: on as few nodes as its size allows, all of it beside its GPUs."""

    parts: tuple[Part, ...]
    local: bool
    steps: float = 0.0
    """What it costs the mix, as seats are compared by it."""
