"""An all-reduce over nodes: what measures it, what that prints, and how well it scales.

Bus bandwidth is `S / t * 2 (n - 1) / n` of n ranks with S bytes each: what a link carries whatever the number of ranks
(NCCL tests, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). So the efficiency of scaling is bus
bandwidth over that of the fewest nodes that have one, by the same transport: 1.0 = further nodes cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.workloads.cluster_run import AllReduceProgram, AllReduceTime, BenchCell

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
"""What each rank runs: the slowest rank of each round counts, and of the rounds the one in the middle."""


def parse_size(text: str) -> int:
    """`64MiB` in bytes, a multiple of 4. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,12})([KMG]iB)?", text.strip(), re.IGNORECASE)
    size = int(found[1]) * _UNITS[(found[2] or "").upper()] if found is not None else 0
    if not 4 <= size <= _LARGEST or size % 4:
        raise UsageError(f"--sizes {text!r} is no size of a buffer", hint="write 1MiB,64MiB: 4 bytes to 16 GiB")
    return size


def chosen_program(printed: str) -> AllReduceProgram | None:
    """Return the best of the programs that `all_reduce_programs.sh` printed; None = the guest has none of them."""
    has = set(re.findall(r"^has (\S+)$", printed, re.MULTILINE))
    names = {"all_reduce_perf": AllReduceProgram.NCCL, "osu_allreduce": AllReduceProgram.OSU}
    return next(
        (found for name, found in names.items() if name in has), AllReduceProgram.MPI4PY if "mpi4py" in has else None
    )


def measuring_commands(program: AllReduceProgram, sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """What each rank runs, one after another.

    `all_reduce_perf -b -e` are the least and the largest size, `-g` the GPUs of a rank (README of the NCCL tests);
    `osu_allreduce -m LEAST:LARGEST` (README of the OSU micro-benchmarks).
    """
    if program is AllReduceProgram.NCCL:
        return tuple(("all_reduce_perf", "-b", str(each), "-e", str(each), "-g", "1") for each in sizes)
    if program is AllReduceProgram.OSU:
        return tuple(("osu_allreduce", "-m", f"{each}:{each}") for each in sizes)
    return (("python3", "-c", _PROGRAM.strip(), *map(str, sizes)),)


def parse_times(program: AllReduceProgram, printed: str, sizes: Sequence[int]) -> tuple[AllReduceTime, ...]:
    """What was printed for each of these sizes. Raises UsageError where one is missing or means nothing."""
    lines = {AllReduceProgram.NCCL: _nccl, AllReduceProgram.OSU: _osu, AllReduceProgram.MPI4PY: _mpi4py}[program]
    found = {each.size_bytes: each for line in printed.splitlines() if (each := lines(line.split())) is not None}
    missing = [each for each in sizes if each not in found or not 0 < found[each].seconds < 1e6]
    if missing:
        last = next((line for line in reversed(printed.splitlines()) if line.strip()), "nothing")
        raise UsageError(f"{program} printed no time for {missing[0]} bytes; its last line: {last[:200]}")
    return tuple(found[each] for each in sizes)


def bus_bandwidth(time: AllReduceTime, ranks: int) -> float | None:
    """Bytes a second; None for a single rank, which exchanges nothing."""
    return time.size_bytes / time.seconds * 2 * (ranks - 1) / ranks if ranks > 1 else None


def efficiency(cell: BenchCell, index: int, cells: Sequence[BenchCell]) -> float | None:
    """Of the time of that index, beside the cell of the fewest nodes of its transport; None = there is none."""
    bandwidths = {
        each.nodes: found
        for each in cells
        if each.transport is cell.transport
        and len(each.times) > index
        and (found := bus_bandwidth(each.times[index], each.ranks)) is not None
    }
    if cell.nodes not in bandwidths:
        return None
    return bandwidths[cell.nodes] / bandwidths[min(bandwidths)]


def _mpi4py(words: list[str]) -> AllReduceTime | None:
    found = _TOLD.fullmatch(" ".join(words))
    seconds = _number(found[2]) if found is not None else None
    return None if found is None or seconds is None else AllReduceTime(int(found[1]), seconds, int(found[3]))


def _osu(words: list[str]) -> AllReduceTime | None:
    """`1048576   1234.56`: bytes, microseconds."""
    if len(words) != 2 or not words[0].isdecimal() or (micros := _number(words[1])) is None:
        return None
    return AllReduceTime(int(words[0]), micros / 1e6)


def _nccl(words: list[str]) -> AllReduceTime | None:
    """size, count, type, redop, root in newer ones, then twice (not in place, in place) time in microseconds, algbw,
    busbw and wrong elements, where older ones have a largest error, or `N/A`."""
    if len(words) not in (12, 13) or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    micros, wrong = _number(words[-8]), words[-5]
    if micros is None:
        return None
    return AllReduceTime(int(words[0]), micros / 1e6, int(wrong) if wrong.isdecimal() and len(words) == 13 else None)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,20})?(e[+-]?[0-9]{1,3})?", text) else None
