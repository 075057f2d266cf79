"""Requests and results of `cluster run` and `cluster bench`, and the arithmetic of an all-reduce over nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.errors import UsageError


class Launcher(StrEnum):
    """The program that starts the ranks."""

    MPIRUN = "mpirun"
    """Open MPI's, in the guest of rank 0: it enters the other guests over SSH."""
    TORCHRUN = "torchrun"
    """PyTorch's, in each guest; it needs no SSH."""
    HOROVODRUN = "horovodrun"
    """Horovod's, in the guest of rank 0: it enters the other guests over SSH."""


class Transport(StrEnum):
    """The transport by which ranks of several VMs exchange data."""

    TCP = "tcp"
    RDMA = "rdma"


class Rendezvous(StrEnum):
    """How the nodes of torchrun find each other."""

    STATIC = "static"
    """gpuops assigns the numbers: the first VM of the cluster has rank 0."""
    C10D = "c10d"
    """The nodes agree on their numbers: rank 0 may be on any of them."""


class AllReduceProgram(StrEnum):
    """The program that measures an all-reduce."""

    NCCL = "nccl"
    """`all_reduce_perf` of NVIDIA's NCCL tests, built with MPI: measures with GPU memory."""
    OSU = "osu"
    """`osu_allreduce` of the OSU micro-benchmarks: measures with host memory."""
    MPI4PY = "mpi4py"
    """A program that gpuops sends; it needs python3 and mpi4py in the guests. Measures with host memory."""


@dataclass(frozen=True, slots=True)
class RunWish:
    """The program to run over a cluster."""

    command: tuple[str, ...]
    """The program and its arguments, as words."""
    launcher: Launcher = Launcher.MPIRUN
    transport: Transport | None = None
    """None = launcher and libraries choose."""
    ranks: int | None = None
    """None = one for each GPU."""
    rendezvous: Rendezvous = Rendezvous.STATIC
    """Only torchrun uses it."""
    limit_s: int | None = None
    """The program is ended after this time; None = never."""
    ssh_port: int = 22
    """The port of the guests' SSH servers, for launchers that use SSH."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run over a cluster ended."""

    exit_code: int
    """Exit code of the launcher in the guest of rank 0; 124 = it was ended after its limit, as by timeout(1)."""
    took_s: float
    """Since its start, by the clock of this machine."""
    printed_bytes: int
    cut: bool = False
    """Whether it printed more than is shown."""
    failed_on: str = ""
    """Name of the VM whose launcher failed first, if it is not the VM of rank 0."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason; the next run tries again."""


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """The measured time of one all-reduce."""

    size_bytes: int
    """Size of the buffer of each rank."""
    seconds: float
    """The median of several."""
    wrong: int | None = None
    """Elements with a wrong sum; None = the program does not check."""


@dataclass(frozen=True, slots=True)
class BenchCell:
    """An all-reduce over some nodes by one transport."""

    nodes: int
    ranks: int
    transport: Transport
    times: tuple[AllReduceTime, ...] = ()
    why_not: str = ""
    """The reason if there are no times."""
    left: tuple[str, ...] = ()
    """What could not be stopped or removed in a guest, each with its reason."""


@dataclass(frozen=True, slots=True)
class BenchWish:
    """The all-reduces to measure."""

    nodes: tuple[int, ...]
    """The numbers of nodes, ascending. Each is measured over the first nodes of the cluster."""
    sizes: tuple[int, ...]
    """Sizes of each rank's buffer, in bytes."""
    transports: tuple[Transport, ...]
    program: AllReduceProgram | None = None
    """None = the first of NCCL, OSU, mpi4py that the guest of rank 0 has."""
    limit_s: int = 600
    """Time limit for all sizes over one number of nodes."""
    ssh_port: int = 22


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements over a cluster."""

    cluster: str
    program: AllReduceProgram
    cells: tuple[BenchCell, ...]
    simulated: bool
    """Whether the guests are processes of one machine, so that TCP is its loopback."""

    @property
    def complete(self) -> bool:
        """Return whether every possible time was measured, with right sums, and nothing was left in the guests."""
        measured = all(cell.times or (self.simulated and cell.transport is Transport.RDMA) for cell in self.cells)
        right = not any(time.wrong for cell in self.cells for time in cell.times)
        return measured and right and not any(cell.left for cell in self.cells)


_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LARGEST: Final = 16 << 30
_MPI4PY_LINE: Final = re.compile(r"gpuops-all-reduce ([0-9]{1,12}) ([0-9.e+-]{1,30}) ([0-9]{1,12})")
_PROGRAM: Final = """
import sys
from array import array
from mpi4py import MPI
world = MPI.COMM_WORLD
for size in map(int, sys.argv[1:]):
    count = max(1, size // 4)
    mine, total = array("f", [world.rank + 1.0]) * count, array("f", [0.0]) * count
    def reduce():
        world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT], op=MPI.SUM)
    reduce(); reduce()
    wanted = world.size * (world.size + 1) / 2
    wrong = world.allreduce(count - total.count(wanted))
    times = []
    for _ in range(20 if size <= 1 << 20 else 7):
        world.Barrier(); began = MPI.Wtime(); reduce()
        times.append(world.allreduce(MPI.Wtime() - began, op=MPI.MAX))
    if world.rank == 0:
        print("gpuops-all-reduce", size, repr(sorted(times)[len(times) // 2]), wrong, flush=True)
"""
"""The program of each rank. It prints the median of the rounds; the slowest rank determines a round."""


def parse_size(text: str) -> int:
    """Return a size such as `64MiB` in bytes, a multiple of 4. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,12})([KMG]iB)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[(match[2] or "").upper()] if match is not None else 0
    if not 4 <= size <= _LARGEST or size % 4:
        raise UsageError(
            f"--sizes {text!r} is not a valid buffer size", hint="write 1MiB,64MiB: from 4 bytes to 16 GiB"
        )
    return size


def chosen_program(printed: str) -> AllReduceProgram | None:
    """Return the best of the programs that `all_reduce_programs.sh` printed; None = the guest has none of them."""
    has = set(re.findall(r"^has (\S+)$", printed, re.MULTILINE))
    names = {"all_reduce_perf": AllReduceProgram.NCCL, "osu_allreduce": AllReduceProgram.OSU}
    return next(
        (program for name, program in names.items() if name in has),
        AllReduceProgram.MPI4PY if "mpi4py" in has else None,
    )


def measuring_commands(program: AllReduceProgram, sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Return the commands that each rank runs, one after another.

    `all_reduce_perf -b -e` are the least and the largest size, `-g` the GPUs of a rank (README of the NCCL tests);
    `osu_allreduce -m LEAST:LARGEST` (README of the OSU micro-benchmarks).
    """
    if program is AllReduceProgram.NCCL:
        return tuple(("all_reduce_perf", "-b", str(size), "-e", str(size), "-g", "1") for size in sizes)
    if program is AllReduceProgram.OSU:
        return tuple(("osu_allreduce", "-m", f"{size}:{size}") for size in sizes)
    return (("python3", "-c", _PROGRAM.strip(), *map(str, sizes)),)


def parse_times(program: AllReduceProgram, printed: str, sizes: Sequence[int]) -> tuple[AllReduceTime, ...]:
    """Return the printed time for each of these sizes. Raises UsageError if a time is missing or invalid."""
    parse_line = {
        AllReduceProgram.NCCL: _parse_nccl_line,
        AllReduceProgram.OSU: _parse_osu_line,
        AllReduceProgram.MPI4PY: _parse_mpi4py_line,
    }[program]
    times = [time for line in printed.splitlines() if (time := parse_line(line.split())) is not None]
    time_of_size = {time.size_bytes: time for time in times}
    missing = [size for size in sizes if size not in time_of_size or not 0 < time_of_size[size].seconds < 1e6]
    if missing:
        last = next((line for line in reversed(printed.splitlines()) if line.strip()), "nothing")
        message = f"{program} printed no time for {missing[0]} bytes; its last line: {last[:200]}"
        raise UsageError(message, hint="run the program in a guest of the cluster to see why")
    return tuple(time_of_size[size] for size in sizes)


def bus_bandwidth(time: AllReduceTime, ranks: int) -> float | None:
    """Return the bus bandwidth in bytes per second; None for a single rank, which exchanges nothing."""
    return time.size_bytes / time.seconds * 2 * (ranks - 1) / ranks if ranks > 1 else None


def efficiency(cell: BenchCell, index: int, cells: Sequence[BenchCell]) -> float | None:
    """Return the bus bandwidth of the cell for one buffer size, divided by that of the fewest nodes; 1.0 = no loss.

    `index`: which of the cell's times. Compares only cells with the same transport that have a bus bandwidth for this
    size; None if this cell has none.
    """
    bandwidths = {
        other_cell.nodes: bandwidth
        for other_cell in cells
        if other_cell.transport is cell.transport
        and len(other_cell.times) > index
        and (bandwidth := bus_bandwidth(other_cell.times[index], other_cell.ranks)) is not None
    }
    if cell.nodes not in bandwidths:
        return None
    return bandwidths[cell.nodes] / bandwidths[min(bandwidths)]


def _parse_mpi4py_line(words: list[str]) -> AllReduceTime | None:
    match = _MPI4PY_LINE.fullmatch(" ".join(words))
    seconds = _parse_decimal(match[2]) if match is not None else None
    return None if match is None or seconds is None else AllReduceTime(int(match[1]), seconds, int(match[3]))


def _parse_osu_line(words: list[str]) -> AllReduceTime | None:
    """Parse a line such as `1048576   1234.56`: bytes, microseconds."""
    if len(words) != 2 or not words[0].isdecimal() or (micros := _parse_decimal(words[1])) is None:
        return None
    return AllReduceTime(int(words[0]), micros / 1e6)


def _parse_nccl_line(words: list[str]) -> AllReduceTime | None:
    """Parse a line of NCCL tests.

    It has size, count, type, redop and, in newer versions, root; then twice (out of place, in place) time in
    microseconds, algbw, busbw and wrong elements. Older versions have the largest error or `N/A` in place of the last.
    """
    if len(words) not in (12, 13) or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    # counted from the end, because `root` may be missing: the out-of-place time, and its wrong elements
    micros, wrong = _parse_decimal(words[-8]), words[-5]
    if micros is None:
        return None
    # 12 words: an older version, whose last column is the largest error and no count
    return AllReduceTime(int(words[0]), micros / 1e6, int(wrong) if wrong.isdecimal() and len(words) == 13 else None)


def _parse_decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,20})?(e[+-]?[0-9]{1,3})?", text) else None
