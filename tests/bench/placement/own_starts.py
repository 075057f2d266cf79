"""Fleets in MIG mode whose starts are taken from what was expected of one's own power-ons, and are not read from hosts.

Each is filled by the product's path, as in `filling.py`: once where hosts let GPU instances start as is documented of
Hopper, and once where they take the lowest free start. Beside it the product as it is, for which a start that no host
has told may be any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import Tenant, gpu_states
from gpuops.model.devices.gpu import PciAddress, VgpuPlacement
from gpuops.model.vcenter.vm import Vm
from gpuops.sim.state.gpu_admission import NotAdmitted, RunningVgpu
from tests.bench.placement.filling import Filled, fill_by_place
from tests.bench.placement.filling_fleet import FLEETS, FillingFleet, FleetKind
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog

SEEDS: Final = range(200, 206, 2)
KIND: Final = next(kind for kind in FLEETS if kind.name == "H100 MIG")


@dataclass(frozen=True, slots=True)
class StartRule:
    """How the hosts choose starts, and whether what was expected of a power-on is taken for what became of it."""

    careful: bool
    expected: bool

    def __str__(self) -> str:
        where = "as documented" if self.careful else "at the lowest free slice"
        return f"started {where}, {'own record' if self.expected else 'no record'}"


class OwnStartsFleet(FillingFleet):
    """A fleet that never tells starts; with a record, the snapshot has those that were expected."""

    def __init__(self, kind: FleetKind, rule: StartRule) -> None:
        super().__init__(kind, starts=rule.expected)
        self.loads = {
            ref: tuple(replace(load, board=replace(load.board, careful_instances=rule.careful)) for load in loads)
            for ref, loads in self.loads.items()
        }

    def power_on(self, vm: Vm, host: str, pins: Mapping[int, PciAddress]) -> tuple[RunningVgpu, ...] | NotAdmitted:
        before = self.seen.hosts[host]
        states = {state.gpu.address: state for state in gpu_states(before, self.seen, catalog())}
        seats = super().power_on(vm, host, pins)
        if isinstance(seats, NotAdmitted) or not self.starts:
            return seats
        for seat in seats:
            at, tenant = PciAddress.parse(seat.pci_id), Tenant(seat.vm, vm.name, seat.type.name)
            states[at] = with_expected(states[at], tenant, catalog())
        now = self.seen.hosts[host]
        gpus = (
            replace(
                gpu,
                vgpus=tuple(VgpuPlacement(each.vm, each.profile, each.start) for each in states[gpu.address].tenants),
            )
            for gpu in now.gpus
        )
        self.seen = self.seen.with_hosts([replace(now, gpus=tuple(gpus))])
        return seats


def run() -> Result:
    """What is filled and refused, by the hosts' rule; nothing is judged."""
    return Result(f"{KIND.name}, starts by an own record of power-ons, {len(SEEDS)} seeds", tuple(_figures()))


def _figures() -> Iterator[Figure]:
    rules = [StartRule(careful, expected) for careful in (True, False) for expected in (True, False)]
    jobs = [(rule, seed) for rule in rules for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        done = dict(zip(jobs, workers.map(_filled, jobs), strict=True))
    for rule in rules:
        fleets = [done[rule, seed] for seed in SEEDS]
        yield Figure(f"{rule}: filled", mean(fleet.percent for fleet in fleets), "%")
        yield Figure(f"{rule}: power-ons refused", mean(fleet.refused for fleet in fleets), "a fleet")


def _filled(job: tuple[StartRule, int]) -> Filled:
    rule, seed = job
    fleet = OwnStartsFleet(KIND, rule)
    refused = fill_by_place(fleet, KIND.requests(seed))
    return Filled(fleet.filled, refused)
