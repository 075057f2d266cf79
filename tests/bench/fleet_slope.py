"""What `gpuops inventory` takes of 100,000 VMs, on paper: the line through three measured fleets, drawn on.

No fleet of that size is simulated here: its simulator alone would need a minute to start. CPU and peak memory are those
of whole processes. How far the fleet in the middle lies off the line through the outer two says whether it is a line.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import linear_regression, median
from typing import Final

from tests.bench.commands import gpuops_command
from tests.bench.measure import Usage, interleave
from tests.bench.simulators import our_simulator
from tests.bench.verdict import Figure, Result

VMS: Final = (2_000, 6_000, 10_000)
VMS_PER_HOST: Final = 10
ON_PAPER: Final = 100_000
ROUNDS: Final = 5
BEND: Final = 0.15
"""Of the middle fleet's figure: a term of VMs squared that tripled the figure on paper would show as more."""
COMMANDS: Final = ("gpuops inventory", "gpuops inventory --output json")


def run() -> list[Result]:
    """A result for each command."""
    measured = [_measured(vms) for vms in VMS]
    return [
        Result(
            f"{command}: 10,000 hosts, {ON_PAPER:,} VMs on paper",
            (
                *_figures("CPU", "CPU s", [min(usage.cpu_s for usage in fleet[command]) for fleet in measured]),
                *_figures(
                    "peak memory", "MiB", [median(usage.peak_mib for usage in fleet[command]) for fleet in measured]
                ),
            ),
        )
        for command in COMMANDS
    ]


def _measured(vms: int) -> dict[str, list[Usage]]:
    """By command, what its runs on a simulated fleet with so many VMs took."""
    with our_simulator(f"fleet:hosts={vms // VMS_PER_HOST},vms={vms}") as served, tempfile.TemporaryDirectory() as made:
        contenders = [gpuops_command(command, served.endpoint, Path(made)) for command in COMMANDS]
        contenders[0].run()  # the server makes its answers once
        return {name: list(usages) for name, usages in interleave(contenders, ROUNDS).items()}


def _figures(what: str, unit: str, values: list[float]) -> tuple[Figure, ...]:
    slope, start = linear_regression(VMS, values)
    chord = values[0] + (values[-1] - values[0]) * (VMS[1] - VMS[0]) / (VMS[-1] - VMS[0])
    return (
        *(Figure(f"{what} of {vms:,} VMs", value, unit) for vms, value in zip(VMS, values, strict=True)),
        Figure(f"{what} of 1,000 VMs more", slope * 1_000, unit),
        Figure(f"{what} of {ON_PAPER:,} VMs, on paper", start + slope * ON_PAPER, unit),
        Figure(f"{what}: the middle fleet off the line", 100 * abs(values[1] / chord - 1), "%", 100 * BEND),
    )
