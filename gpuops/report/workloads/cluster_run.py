"""What `gpuops cluster run` and `gpuops cluster bench` print beside the output of the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuops.model.workloads.cluster_run import AllReduceProgram, BenchCell, BenchResult, RunEnd, Transport
from gpuops.plan.cluster_run.all_reduce import bus_bandwidth, efficiency
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, duration, visible

if TYPE_CHECKING:
    from gpuops.plan.cluster_run.launch import LaunchPlan

_MEMORY = {
    AllReduceProgram.NCCL: "all_reduce_perf of the NCCL tests, GPU memory",
    AllReduceProgram.OSU: "osu_allreduce, host memory",
    AllReduceProgram.MPI4PY: "mpi4py, host memory: what GPUs add is not in it",
}


def launch_text(plan: LaunchPlan) -> Shown:
    """Which command line is started in which guest; nothing where none is."""
    launch = plan.launch
    if launch is None:
        return ()
    table = TextTable("rank", "VM", "host", "address", "GPUs", "ranks", right=(0, 4, 5))
    for rank, (member, slots) in enumerate(zip(launch.members, launch.slots, strict=True)):
        words = (member.name, member.host, member.address or "-")
        table.add_row(str(rank), *map(visible, words), str(member.gpus), str(slots))
    variables = " ".join(f"{name}={value}" for name, value in launch.environment.items())
    lines = [f"{visible(launch.members[node].name)}: {visible(line)}" for node, line in enumerate(launch.command_lines)]
    return [table, *lines, Text(f"with {variables}; nothing was started", "dim")]


def end_text(end: RunEnd) -> Shown:
    """How it ended, and what is left in guests."""
    lines: list[Shown] = []
    if end.cut:
        lines.append(Text("cut: it printed more than is shown; write logs to files in the guest", "yellow"))
    if end.failed_on:
        lines.append(Text(f"the launcher in {visible(end.failed_on)} failed first", "red"))
    lines += [Text(f"left: {visible(each)}", "red") for each in end.left]
    if end.left:
        lines.append(Text("the next run of this cluster tries again to remove it", "dim"))
    lines.append(Text(f"exit code {end.exit_code} after {duration(end.took_s)}", "red" if end.exit_code else "dim"))
    return lines


def run_document(cluster: str, plan: LaunchPlan, end: RunEnd | None, exit_code: int) -> Document:
    """The same for programs; what the program printed is not in it."""
    launch = plan.launch
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "cluster-run",
        "cluster": cluster,
        "rejections": [each.line for each in plan.rejections],
        "launch": None
        if launch is None
        else {
            "launcher": launch.launcher,
            "ranks": launch.ranks,
            "command_lines": list(launch.command_lines),
            "environment": dict(launch.environment),
            "members": [
                {"vm": each.name, "host": each.host, "address": each.address, "gpus": each.gpus, "ranks": slots}
                for each, slots in zip(launch.members, launch.slots, strict=True)
            ],
        },
        "end": None
        if end is None
        else {
            "exit_code": end.exit_code,
            "took_s": round(end.took_s, 3),
            "printed_bytes": end.printed_bytes,
            "cut": end.cut,
            "failed_on": end.failed_on,
            "left": list(end.left),
        },
        "exit_code": exit_code,
    }


def bench_text(result: BenchResult) -> Shown:
    """A line for each number of nodes and size, with one transport beside the other."""
    transports = tuple(dict.fromkeys(each.transport for each in result.cells))
    heads = [f"{each} {what}" for each in transports for what in ("seconds", "GB/s", "scaling")]
    both = len(transports) == 2
    heads += ["rdma is faster"] if both else []
    table = TextTable("nodes", "ranks", "bytes", *heads, right=range(3 + len(heads)))
    for cells, index, size in _rows(result):
        table.add_row(str(cells[0].nodes), str(cells[0].ranks), str(size), *_figures(result, cells, index, both=both))
    lines: list[Shown] = [Text(f"{visible(result.cluster)}: all-reduce by {_MEMORY[result.program]}", "bold"), table]
    for each in result.cells:
        where = f"{each.transport} over {count(each.nodes, 'node')}"
        if each.why_not:
            lines.append(Text(f"{where}: {visible(each.why_not)}", "yellow"))
        wrong = sum(time.wrong or 0 for time in each.times)
        if wrong:
            lines.append(Text(f"{where}: {count(wrong, 'element')} with a wrong sum", "red"))
        lines += [Text(f"left: {visible(line)}", "red") for line in each.left]
    if result.simulated:
        lines.append(Text("simulated guests: TCP is the loopback of one machine, no network", "yellow"))
    lines.append(Text("scaling: bus bandwidth beside that of the fewest nodes that have one", "dim"))
    return lines


def bench_document(result: BenchResult) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "cluster-bench",
        "cluster": result.cluster,
        "program": result.program,
        "simulated": result.simulated,
        "complete": result.complete,
        "cells": [
            {
                "nodes": each.nodes,
                "ranks": each.ranks,
                "transport": each.transport,
                "why_not": each.why_not,
                "left": list(each.left),
                "times": [_time(result, each, index) for index in range(len(each.times))],
            }
            for each in result.cells
        ],
    }


def _time(result: BenchResult, cell: BenchCell, index: int) -> dict[str, Any]:
    time = cell.times[index]
    return {
        "size_bytes": time.size_bytes,
        "seconds": time.seconds,
        "bus_bytes_per_s": bus_bandwidth(time, cell.ranks),
        "scaling_efficiency": efficiency(cell, index, result.cells),
        "wrong": time.wrong,
    }


def _rows(result: BenchResult) -> Iterator[tuple[tuple[BenchCell, ...], int, int]]:
    """The cells of one number of nodes, one for each transport; and which size of theirs."""
    for nodes in dict.fromkeys(each.nodes for each in result.cells):
        cells = tuple(each for each in result.cells if each.nodes == nodes)
        sizes = next((tuple(time.size_bytes for time in each.times) for each in cells if each.times), ())
        yield from ((cells, index, size) for index, size in enumerate(sizes))


def _figures(result: BenchResult, cells: tuple[BenchCell, ...], index: int, *, both: bool) -> Iterator[str]:
    for cell in cells:
        if not cell.times:
            yield from ("-", "-", "-")
            continue
        bandwidth, scaling = bus_bandwidth(cell.times[index], cell.ranks), efficiency(cell, index, result.cells)
        yield f"{cell.times[index].seconds:.6f}"
        yield f"{bandwidth / 1e9:.3f}" if bandwidth is not None else "-"
        yield f"{scaling:.0%}" if scaling is not None else "-"
    if not both:
        return
    times = {cell.transport: cell.times[index].seconds for cell in cells if cell.times}
    tcp, rdma = times.get(Transport.TCP), times.get(Transport.RDMA)
    yield f"{tcp / rdma:.1f} times" if tcp and rdma else "-"
