"""Measures an all-reduce over nodes: the commands, their output, and the efficiency of scaling.

Bus bandwidth is `S / t * 2 (n - 1) / n` for n ranks with S bytes each: the load of a link, independent of the number of
ranks (NCCL tests, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). The efficiency of scaling is
the bus bandwidth divided by that of the fewest measured nodes with the same transport; 1.0 means no loss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpuops.errors import UsageError
from gpuops.extras.clusters.cluster_run import AllReduceProgram, AllReduceTime, BenchCell

_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LARGEST: Final = 16 << 30
_TOLD: Final = re.compile(r"gpuops-all-reduce ([0-9]{1,12}) ([0-9.e+-]{1,30}) ([0-9]{1,12})")
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
    parse_line = {AllReduceProgram.NCCL: _nccl, AllReduceProgram.OSU: _osu, AllReduceProgram.MPI4PY: _mpi4py}[program]
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


def _mpi4py(words: list[str]) -> AllReduceTime | None:
    match = _TOLD.fullmatch(" ".join(words))
    seconds = _number(match[2]) if match is not None else None
    return None if match is None or seconds is None else AllReduceTime(int(match[1]), seconds, int(match[3]))


def _osu(words: list[str]) -> AllReduceTime | None:
    """Parse a line such as `1048576   1234.56`: bytes, microseconds."""
    if len(words) != 2 or not words[0].isdecimal() or (micros := _number(words[1])) is None:
        return None
    return AllReduceTime(int(words[0]), micros / 1e6)


def _nccl(words: list[str]) -> AllReduceTime | None:
    """Parse a line of NCCL tests.

    It has size, count, type, redop and, in newer versions, root; then twice (out of place, in place) time in
    microseconds, algbw, busbw and wrong elements. Older versions have the largest error or `N/A` in place of the last.
    """
    if len(words) not in (12, 13) or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    # counted from the end, because `root` may be missing: the out-of-place time, and its wrong elements
    micros, wrong = _number(words[-8]), words[-5]
    if micros is None:
        return None
    # 12 words: an older version, whose last column is the largest error and no count
    return AllReduceTime(int(words[0]), micros / 1e6, int(wrong) if wrong.isdecimal() and len(words) == 13 else None)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,20})?(e[+-]?[0-9]{1,3})?", text) else None
