"""Loss: what one place takes from the other VMs that a site knows, as places are compared by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Loss:
    """`steps` is what places are compared by; the rest is what it is made of."""

    steps: int
    worth_mib: float
    """GPU memory that the mix could have used, as far as the pool weighs it."""
    kept_mib: float
    """Places for VMs of several GPUs at once, at the chance that they are wanted."""


NO_LOSS: Final = Loss(0, 0.0, 0.0)
