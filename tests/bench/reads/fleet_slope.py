"""What `gpuops inventory` takes of 100,000 VMs, on paper: the line through three measured fleets, drawn on.

No fleet of that size is simulated here: its simulator alone would need a minute to start. CPU and peak memory are those
of whole processes. How far the fleet in the middle lies off the line through the outer two says whether it is a line.
govc reads the same fleets in the same rounds, where it is built, and its line is drawn on likewise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import linear_regression, median
from typing import Final

from tests.bench.measure import Usage, interleave
from tests.bench.reads.commands import COLLECT, JSON, OVER_JSON, OVER_SOAP, SUMMARY, govc_collect, gpuops_command
from tests.bench.simulator.simulators import our_simulator, unbuilt_peers
from tests.bench.verdict import Figure, Result

VMS: Final = (2_000, 6_000, 10_000)
VMS_PER_HOST: Final = 10
ON_PAPER: Final = 100_000
ROUNDS: Final = 3
BEND: Final = 0.15
"""Of the middle fleet's figure: a term of VMs squared that tripled the figure on paper would show as more."""
COMMANDS: Final = {
    SUMMARY: OVER_SOAP,
    JSON: OVER_SOAP,
    f"{SUMMARY} --reader json": OVER_JSON,
    f"{JSON} --reader json": OVER_JSON,
}
"""Each with the most that its CPU may be of govc's."""


def run() -> list[Result]:
    """A result for each command."""
    measured = [_measured(vms) for vms in VMS]
    govc = [_cpu_s(fleet[COLLECT]) for fleet in measured if COLLECT in fleet]
    results = []
    for command, most in COMMANDS.items():
        figures = _of_command(command, measured)
        if govc:
            figures += _beside_govc([_cpu_s(fleet[command]) for fleet in measured], govc, most)
        results.append(Result(f"{command}: 10,000 hosts, {ON_PAPER:,} VMs on paper", figures))
    return results


def _measured(vms: int) -> dict[str, Sequence[Usage]]:
    """By command, what its runs on a simulated fleet with so many VMs took."""
    with our_simulator(f"fleet:hosts={vms // VMS_PER_HOST},vms={vms}") as served, tempfile.TemporaryDirectory() as made:
        contenders = [gpuops_command(command, served.endpoint, Path(made)) for command in COMMANDS]
        contenders += [] if unbuilt_peers() else [govc_collect(served.endpoint, Path(made))]
        for each in (contenders[0], contenders[-1]):
            each.run()  # the server makes its answers once
        return dict(interleave(contenders, ROUNDS))


def _cpu_s(usages: Sequence[Usage]) -> float:
    return min(usage.cpu_s for usage in usages)


def _of_command(command: str, measured: Sequence[Mapping[str, Sequence[Usage]]]) -> tuple[Figure, ...]:
    usages = [fleet[command] for fleet in measured]
    return (
        *_figures("CPU", "CPU s", [_cpu_s(each) for each in usages]),
        *_figures("peak memory", "MiB", [median(usage.peak_mib for usage in each) for each in usages]),
    )


def _beside_govc(ours: Sequence[float], govc: Sequence[float], most: float) -> tuple[Figure, ...]:
    theirs = _on_paper(govc)
    return (
        Figure(f"CPU of {COLLECT} of {ON_PAPER:,} VMs, on paper", theirs, "CPU s"),
        Figure("CPU on paper / govc's on paper", _on_paper(ours) / theirs, "x", most),
    )


def _on_paper(values: Sequence[float]) -> float:
    slope, start = linear_regression(VMS, values)
    return start + slope * ON_PAPER


def _figures(what: str, unit: str, values: Sequence[float]) -> tuple[Figure, ...]:
    chord = values[0] + (values[-1] - values[0]) * (VMS[1] - VMS[0]) / (VMS[-1] - VMS[0])
    return (
        *(Figure(f"{what} of {vms:,} VMs", value, unit) for vms, value in zip(VMS, values, strict=True)),
        Figure(f"{what} of 1,000 VMs more", linear_regression(VMS, values).slope * 1_000, unit),
        Figure(f"{what} of {ON_PAPER:,} VMs, on paper", _on_paper(values), unit),
        Figure(f"{what}: the middle fleet off the line", 100 * abs(values[1] / chord - 1), "%", 100 * BEND),
    )
