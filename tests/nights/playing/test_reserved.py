"""Seeded nights on a vCenter 9.0 that has reserved vGPUs for VMs of others, some of which start in the night: no night
takes a reserved slot, and no desktop is lost to a reservation.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec
import pytest

from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.operations.reserved_capacity import capacity
from gpuops.sim.scenario.declared import ManagerDeclared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState
from gpuops.sim.world import World
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import NIGHT_S
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import SUSPEND, effects
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played
from tests.nights.world.worlds import Site, site_of
from tests.sample import every_nth, mostly_long

KUBE: Final = 3
"""How many VMs of others there are that take what is reserved."""


class ReservedSite(Site):
    """A site some of whose slots are reserved, from one to a few more than are free; those of `kube` VMs always are."""

    def world(self, seed: int) -> World:
        world, rng = super().world(seed), random.Random(f"{seed}:reserved")
        kube = next(vm for vm in world.by_type("VirtualMachine") if vm.name == "kube-1").state.vgpus[0].type_name
        types = sorted({vgpu.type_name for vm in world.by_type("VirtualMachine") for vgpu in vm.state.vgpus})
        reservations = []
        for cluster in world.by_type("ClusterComputeResource"):
            for name in dict.fromkeys((kube, rng.choice(types))):
                free = capacity(DirectPathConfig(vgpu=name), cluster.hosts(), ()).remaining
                units = rng.choice([1, free, free, free // 2, free + rng.randint(1, 4)])
                reservations.append(
                    ReservationState(DirectPathConfig(vgpu=name), max(1, units), cluster.moid, ("kube-*",))
                )
        profiles = {name: DirectPathProfileState(name, name, "", DirectPathConfig(vgpu=name)) for name in types}
        world.direct_path = DirectPathState(profiles, tuple(reservations))
        return world


def _with_kube(declared: ScenarioFile, rng: random.Random) -> ScenarioFile:
    """The scenario of a vCenter 9.0 with VMs of the VM Service, which are off."""
    like = rng.choice([vms for vms in declared.vms if any(device.vgpu for device in vms.devices)])
    kube = msgspec.structs.replace(
        like, name="kube-{}", first=1, count=KUBE, folder="kube", power="off", attributes={}, console_connections=0,
        devices=tuple(device for device in like.devices if device.vgpu)[:1], extra_config={},
        managed_by=ManagerDeclared("com.vmware.vcenter.wcp"),
    )  # fmt: skip
    return msgspec.structs.replace(declared, api_version="9.0.0.0", vms=(*declared.vms, kube))


def night_of(seed: int) -> Played | None:
    """A night in which nothing fails, and VMs of others start on what is reserved; None = a world without vGPUs."""
    plain, rng = site_of(seed), random.Random(f"{seed}:kube")
    if not any(device.vgpu for vms in plain.declared.vms for device in vms.devices):
        return None
    site = ReservedSite(plain.size, _with_kube(plain.declared, rng), plain.policy, plain.several, plain.split)
    units = site.world(seed).direct_path.reservations[0].units
    started = [
        Event("G1", rules_of("G1", {"target": f"kube-{number}", "at_s": float(rng.randint(1, NIGHT_S))}))
        for number in range(1, min(units, KUBE) + 1)
        if rng.random() < 0.6
    ]
    return Nightly(seed, started, site).play()


@pytest.mark.parametrize("nth", mostly_long([3, 1], [3]))
def test_no_night_takes_a_reserved_slot_or_loses_a_desktop_to_a_reservation(nth: int) -> None:
    suspended = held_back = kube = 0
    for seed in every_nth(range(80), nth):
        night = night_of(seed)
        if night is None:
            continue
        assert violations(night) == []
        for report, _ in night.told:
            reasons = [outcome.reason for outcome in report.outcomes if "no room left" in outcome.reason]
            assert reasons == [], f"seed {seed}"
            held_back += any("reserved" in choice.reason for choice in report.plan.choices)
        suspended += len(effects(night, SUSPEND))
        assert all("kube" not in entry.name for entry in effects(night)), f"seed {seed}: a VM of others was touched"
        kube += sum("kube" in change.name and change.after.get("power") == "poweredOn" for change in night.world.ledger)
    assert min(suspended, held_back, kube) > (10 if nth == 1 else 3), (suspended, held_back, kube)
