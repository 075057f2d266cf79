"""The placement of a queue as an integer program: how many VMs of each kind, how many hosts of each shape.

`batch_model.py` builds it from a snapshot, `solve.py` solves it. Equal requests are one kind and equal hosts one shape,
each with its number. A row is a quantity that a host has: memory of a NUMA node, vGPU slots of a profile beside a node.
What a VM uses and what the layout of a GPU provides are both written in rows: the solver need not know what a row is.

Example: a host with one NUMA node, 8 units of memory and two GPUs, each of which takes two 24 GiB vGPUs or four of 12.
Rows: 0 = memory, 1 = slots of 24 GiB, 2 = slots of 12 GiB.

    HostShape(
        count=1,
        capacity=(8, 0, 0),                                        # no slots before a GPU has a layout
        groups=(GpuGroup(2, layouts=(((1, 2),), ((2, 4),))),),     # two GPUs: 2 slots in row 1, or 4 in row 2
        options={0: (PlacementOption(uses=((0, 2), (1, 1))),)},    # kind 0: 2 units of memory and one slot of 24 GiB
    )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

REMOTE_PENALTY: Final = 0.001
"""Share of its worth that a VM loses when it is not beside its GPUs; so small that it only decides between equals."""
Amounts = tuple[tuple[int, int], ...]
"""(row, how much of it), each row once."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One way to put a VM of some kind on a host of some shape: what it uses there."""

    uses: Amounts
    remote: bool = False
    """Not certain to be beside its GPUs. Uses no more than the other options of the kind, and no row of a NUMA node."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """Equal GPUs, each of which takes one of these layouts. A layout is maximal: its slots need not all be used."""

    count: int
    layouts: tuple[Amounts, ...]


@dataclass(frozen=True, slots=True)
class HostShape:
    """Equal hosts. `options`: by the number of the kind of VM, remote ones last; a kind without one cannot go there."""

    count: int
    capacity: tuple[int, ...]
    """Of each row, before any GPU has a layout."""
    groups: tuple[GpuGroup, ...]
    options: Mapping[int, tuple[PlacementOption, ...]]


@dataclass(frozen=True, slots=True)
class HostPattern:
    """What one host of a shape holds, and the layouts of its GPUs for it."""

    shape: int
    vms: tuple[tuple[int, int, int], ...]
    """(kind, number of its option, VMs)."""
    gpus: tuple[tuple[int, int, int], ...]
    """(group, number of the layout, GPUs)."""

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """The number of VMs of each kind as (kind, VMs), each kind once."""
        vms_of_kind: dict[int, int] = {}
        for kind, _, count in self.vms:
            vms_of_kind[kind] = vms_of_kind.get(kind, 0) + count
        return tuple(sorted(vms_of_kind.items()))


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """So many VMs of each kind, what each is worth (its GPU memory), and the hosts."""

    demand: tuple[int, ...]
    worth: tuple[int, ...]
    shapes: tuple[HostShape, ...]
    used_host_cost: float = 0.0
    """What using a host costs that could stay empty."""

    def value(self, pattern: HostPattern) -> float:
        """Return the worth of the pattern: its GPU memory less the penalties for remote VMs and for using the host."""
        placed = sum(count * self.worth_of(pattern.shape, kind, option) for kind, option, count in pattern.vms)
        return placed - self.used_host_cost

    def memory(self, pattern: HostPattern) -> int:
        """Return the GPU memory in MiB that the pattern places."""
        return sum(count * self.worth[kind] for kind, _, count in pattern.vms)

    @property
    def memory_of_all(self) -> int:
        """The GPU memory of all the VMs."""
        return sum(count * worth for count, worth in zip(self.demand, self.worth, strict=True))

    def worth_of(self, shape: int, kind: int, option: int) -> float:
        """What one VM of the kind is worth there."""
        return self.worth[kind] * (1 - REMOTE_PENALTY * self.shapes[shape].options[kind][option].remote)


@dataclass(frozen=True, slots=True)
class BatchSolution:
    """Patterns with the number of hosts each is on."""

    patterns: tuple[tuple[HostPattern, int], ...]


def with_local_options(problem: BatchProblem) -> BatchProblem:
    """Return the problem without remote options: every VM is beside its GPUs."""
    shapes = []
    for shape in problem.shapes:
        # Remote options come last, so the numbers of the others stay the same without them.
        local = {
            kind: tuple(option for option in options if not option.remote) for kind, options in shape.options.items()
        }
        shapes.append(replace(shape, options={kind: options for kind, options in local.items() if options}))
    return replace(problem, shapes=tuple(shapes))


def with_loosest_options(problem: BatchProblem) -> BatchProblem:
    """Return the problem in which every VM has only its least demanding options, whatever its locality. For bounds
    only: if there is a remote option, it demands least."""
    shapes = []
    for shape in problem.shapes:
        options = dict(shape.options)
        for kind, options_of_kind in shape.options.items():
            remote_options = tuple(replace(option, remote=False) for option in options_of_kind if option.remote)
            options[kind] = remote_options or options_of_kind
        shapes.append(replace(shape, options=options))
    return replace(problem, shapes=tuple(shapes))
