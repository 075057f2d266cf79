"""The site: from how often each shape of VM comes, what the pool needs to know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.reserve import Large
from gpuops.plan.placement.fleet.worth import Shapes, weights

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Floats


TYPICAL: Final = 0.95
"""Of all VMs: what comes more rarely is not waited for, unless it takes several GPUs at once."""


@dataclass(frozen=True, slots=True)
class Often:
    """One shape of VM and how often it comes."""

    kind: int
    count: int
    cpu: int
    memory: int
    often: float


def typical(asked: Sequence[Often], share: float = TYPICAL) -> list[Often]:
    """The commonest that make up this share of all."""
    ranked = sorted(asked, key=lambda each: (-each.often, each.cpu, each.memory, each.kind, each.count))
    upto = np.cumsum([each.often for each in ranked])
    return ranked[: int(np.searchsorted(upto, share * upto[-1]) + 1)]


def shapes_of(asked: Sequence[Often], sizes: Mapping[int, int], gpus: int) -> Shapes:
    """They as shapes. What has more devices than the `gpus` of a node is worth to each of two what its half is."""
    halves = [2 if each.count > gpus else 1 for each in asked]
    kinds = tuple(sorted(sizes))
    often = np.array([each.often for each in asked])
    return Shapes(
        kinds,
        np.array([kinds.index(each.kind) for each in asked], dtype=np.int64),
        np.array([each.count // half for each, half in zip(asked, halves, strict=True)]),
        np.array([sizes[each.kind] for each in asked]),
        np.array([-(-each.cpu // half) for each, half in zip(asked, halves, strict=True)]),
        np.array([-(-each.memory // half) for each, half in zip(asked, halves, strict=True)]),
        often / often.sum(),
        np.ones((1, len(asked)), dtype=np.bool_),
    )


def weighted(shapes: Shapes, asked: Sequence[Often], price: Mapping[int, float], slack: float) -> Shapes:
    """The shapes as the pool weighs them, with what CPU and memory can feed at these prices."""
    weight = weights(shapes.weight, shapes.count, shapes.size)

    def fed(rest: Floats) -> float:
        """Value per unit, over those that ask for any; `slack` more than the mean, for not all of it comes at once."""
        value = sum(each.often * each.count * price[each.kind] for each, much in zip(asked, rest, strict=True) if much)
        total = sum(each.often * much for each, much in zip(asked, rest, strict=True))
        return slack * value / total if total else np.inf

    cpu = fed(np.array([each.cpu for each in asked], dtype=np.float64))
    memory = fed(np.array([each.memory for each in asked], dtype=np.float64))
    return replace(shapes, weight=weight, fed_by_cpu=cpu, fed_by_memory=memory)


def large_of(asked: Sequence[Often], sizes: Mapping[int, int], shapes: Shapes, gpu: int) -> Large | None:
    """The shapes of several GPUs of the size `gpu` at once. One asks for as much as another if it does in all."""
    merged: dict[tuple[int, int, int, int], float] = {}
    for each in asked:
        if each.count > 1 and sizes[each.kind] == gpu:
            key = (each.kind, each.count, each.cpu, each.memory)
            merged[key] = merged.get(key, 0.0) + each.often
    if not merged:
        return None
    kinds = np.array([key[0] for key in merged])
    asks = np.array([key[1:] for key in merged])
    often = np.array(list(merged.values()))
    total = sum(each.often for each in asked)
    share = np.array(
        [often[(asks >= ask).all(axis=1) & (kinds == kind)].sum() for ask, kind in zip(asks, kinds, strict=True)]
    )
    mean = sum(each.often * each.count * sizes[each.kind] for each in asked) / total
    column = np.array([shapes.kinds.index(kind) for kind in kinds.tolist()])
    suits = np.ones((1, len(asks)), dtype=np.bool_)
    return Large(column, asks[:, 0], asks[:, 1], asks[:, 2], suits, share / total, float(gpu), mean)
