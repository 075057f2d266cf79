"""What measures an all-reduce, what that prints, and how well it scales."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.errors import UsageError
from gpuops.extras.clusters.run_request import (
    AllReduceProgram,
    AllReduceTime,
    BenchCell,
    Transport,
    bus_bandwidth,
    chosen_program,
    efficiency,
    measuring_commands,
    parse_size,
    parse_times,
)

MIB = 1 << 20
NCCL = f"""# nThread 1 nGpus 1 minBytes {MIB} maxBytes {MIB} step: 1048576(bytes) warmup iters: 1 iters: 20
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1   115.80    9.05   15.85      0   112.10    9.35   16.37      3
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.11
"""
OLD_NCCL = (
    "     1048576        262144   float     sum    2.059    0.51    0.51    N/A    3.314    0.32    0.32    N/A\n"
)
OSU = """# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_INT.
# Size       Avg Latency(us)
1048576              1234.56
"""
OURS = f"warning: something\ngpuops-all-reduce {MIB} 0.0012 0\n"


@pytest.mark.parametrize(
    ("program", "printed", "expected"),
    [
        (AllReduceProgram.NCCL, NCCL, AllReduceTime(MIB, 115.80e-6, 0)),
        (AllReduceProgram.NCCL, OLD_NCCL, AllReduceTime(MIB, 2.059e-6, None)),
        (AllReduceProgram.OSU, OSU, AllReduceTime(MIB, 1234.56e-6)),
        (AllReduceProgram.MPI4PY, OURS, AllReduceTime(MIB, 0.0012, 0)),
    ],
)
def test_the_time_of_each_program_is_read(program: AllReduceProgram, printed: str, expected: AllReduceTime) -> None:
    [time] = parse_times(program, printed, [MIB])
    assert time.seconds == pytest.approx(expected.seconds)
    assert (time.size_bytes, time.wrong) == (expected.size_bytes, expected.wrong)


@pytest.mark.parametrize(
    "printed", ["", "Segmentation fault\n", f"gpuops-all-reduce {MIB} 0.0 0\n", f"gpuops-all-reduce {MIB} 1 -1"]
)
def test_what_tells_no_time_is_refused_with_its_last_line(printed: str) -> None:
    last = (printed.strip() or "nothing").splitlines()[-1]
    with pytest.raises(UsageError, match="no time for 1048576 bytes") as error:
        parse_times(AllReduceProgram.MPI4PY, printed, [MIB])
    assert last in error.value.message


@given(st.text(max_size=200), st.sampled_from(AllReduceProgram))
def test_no_text_breaks_the_reading(text: str, program: AllReduceProgram) -> None:
    try:
        times = parse_times(program, text, [MIB])
    except UsageError:
        return
    assert times[0].seconds > 0


def test_the_bus_bandwidth_is_that_of_the_nccl_tests() -> None:
    """PERFORMANCE.md of the NCCL tests: 1 MiB among 8 ranks in 115.80 us, 9.05 GB/s, is 15.85 GB/s on the bus."""
    bandwidth = bus_bandwidth(AllReduceTime(MIB, 115.80e-6), 8)
    assert bandwidth is not None and round(bandwidth / 1e9, 2) == 15.85
    assert bus_bandwidth(AllReduceTime(MIB, 1.0), 1) is None


def test_scaling_is_beside_the_fewest_nodes_that_exchange_anything_of_the_same_transport() -> None:
    def cell(nodes: int, seconds: float, transport: Transport = Transport.TCP) -> BenchCell:
        return BenchCell(nodes, nodes, transport, (AllReduceTime(MIB, seconds),))

    failed = BenchCell(8, 8, Transport.TCP, why_not="exit code 1")
    cells = (cell(1, 1e-6), cell(2, 1e-3), cell(4, 3e-3), failed, cell(2, 1e-4, Transport.RDMA))
    shares = [efficiency(row, 0, cells) for row in cells]
    # 4 ranks: 1.5 S / 3 ms beside S / 1 ms of two
    assert shares == [None, 1.0, pytest.approx(0.5), None, 1.0]


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("1KiB", 1024), ("64MiB", 64 * MIB), (" 16gib", 16 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "3", "17GiB", "1MB", "-4", "1e6", "4 KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid buffer size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("printed", "program"),
    [
        ("has osu_allreduce\nhas all_reduce_perf\nhas mpi4py\n", AllReduceProgram.NCCL),
        ("has mpi4py\nhas osu_allreduce\n", AllReduceProgram.OSU),
        ("has mpi4py", AllReduceProgram.MPI4PY),
        ("sh: python3: not found\n", None),
    ],
)
def test_the_best_program_that_a_guest_has(printed: str, program: AllReduceProgram | None) -> None:
    assert chosen_program(printed) is program


def test_each_program_is_called_as_its_readme_says() -> None:
    """https://github.com/NVIDIA/nccl-tests: `all_reduce_perf -b 8 -e 128M -f 2 -g 8`; the README of the OSU
    micro-benchmarks: `-m [MIN:]MAX`, the sizes of messages."""
    assert measuring_commands(AllReduceProgram.NCCL, [4096, MIB]) == (
        ("all_reduce_perf", "-b", "4096", "-e", "4096", "-g", "1"),
        ("all_reduce_perf", "-b", "1048576", "-e", "1048576", "-g", "1"),
    )
    assert measuring_commands(AllReduceProgram.OSU, [4096]) == (("osu_allreduce", "-m", "4096:4096"),)
    [ours] = measuring_commands(AllReduceProgram.MPI4PY, [4096, MIB])
    assert (ours[:2], ours[3:]) == (("python3", "-c"), ("4096", "1048576"))
    compile(ours[2], "all_reduce", "exec")
