"""Seeded nights among VMs that belong to other products, from the evening on or from some moment of the night: none of
them is touched, but for what a night has taken before that and gives back.

The ledger tells what was done, and which VM was whose when it was done; nothing here asks the engine or its rules.

Seeded nights on a vCenter 9.0 that has reserved vGPUs for VMs of others, some of which start in the night: no night
takes a reserved slot, and no desktop is lost to a reservation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest

from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.operations.reserved_capacity import capacity
from gpuops.sim.scenario.declared import ManagerDeclared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState
from gpuops.sim.world import World
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import NIGHT_S, schedule_of
from tests.nights.judging.checkers import desktops_back, violations
from tests.nights.judging.doings import CALL, MARK, START, SUSPEND, effects, takes
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import OVERRIDE, Played
from tests.nights.world.worlds import LOCK, Site, site_of
from tests.sample import every_nth, mostly_long

MANAGERS: Final = (
    ("com.vmware.vcenter.wcp", "VirtualMachine"),
    ("com.vmware.vim.eam", "cluster-agent"),
    ("com.example.backup", ""),
)


HIDING: Final = ("A10", "A11", "A12", "N2", "K6", "K7", "K12")
"""What keeps a look from showing who owns a VM, or lets time pass between a look and its request."""


class ManagedSite(Site):
    """The site of a seed in which other products have some of the VMs."""

    def world(self, seed: int) -> World:
        world, rng = super().world(seed), random.Random(f"{seed}:managed")
        for vm in world.by_type("VirtualMachine"):
            if vm.name != LOCK and rng.random() < 0.3:
                vm.state.managed_by = rng.choice(MANAGERS)
        return world


def managed_night(seed: int, *, quiet: bool = False) -> Played:
    """The night of a seed among managed VMs, with others that are handed over in it; `quiet`: with no other trouble."""
    plain = site_of(seed)
    site = ManagedSite(*(getattr(plain, field.name) for field in fields(Site)))
    names = [vm.name for vm in site.world(seed).by_type("VirtualMachine") if vm.name != LOCK]
    rng = random.Random(f"{seed}:handed over")
    handed = [
        Event(
            "V12", rules_of("V12", {"target": name, "at_s": float(rng.choice([5, 60, 600, rng.randint(1, NIGHT_S)]))})
        )
        for name in rng.sample(names, len(names) // 4)
    ]
    desktops, ml = ([name for name in names if name.startswith(kind)] for kind in ("desktop-", "ml-"))
    hosts = [host.name for host in site.world(seed).by_type("HostSystem")]
    trouble = () if quiet else schedule_of(seed, desktops, ml, hosts)
    events = (event for event in trouble if event.fault not in HIDING)
    return Nightly(seed, [*handed, *events], site).play()


def touched_vms(night: Played) -> Iterator[str]:
    """What was done to a VM of another product, but for what gives back what a night took before the product came."""
    evening = night.site.world(night.seed)
    since: dict[str, datetime] = {
        vm.moid: datetime.min.replace(tzinfo=UTC) for vm in evening.by_type("VirtualMachine") if vm.state.managed_by
    }
    ours = {entry.sequence for entry in effects(night)}
    taken_vms = set(night.left_over)
    for change in night.world.ledger:
        if change.after.get("managed_by"):
            since[change.moid] = change.at
        if change.sequence not in ours:
            continue
        if takes(change):
            taken_vms.add(change.moid)
        if (
            change.moid in since
            and night.asked.get(change.operation_id, change.at) - since[change.moid] > CALL
            and not _gives_back(change, taken_vms)
        ):
            yield f"seed {night.seed}: {change.method} on {change.name} {dict(change.after)}, which is managed"


def _gives_back(entry: Entry, taken_vms: set[str]) -> bool:
    """A desktop that a night took runs again; a marker is taken off; DRS does again what it did before."""
    if entry.method == START:
        return entry.moid in taken_vms
    return entry.method == OVERRIDE or (entry.method == MARK and not any(entry.after.values()))


def _is_of_others_now(night: Played, violation: str) -> bool:
    """Whether it is that an ML VM runs on in the morning, which other products have: they stop it."""
    name, _, problem = violation.removeprefix("I23: ").partition(" ")
    vm = next((vm for vm in night.world.by_type("VirtualMachine") if vm.name == name), None)
    return problem == "was started by the night and still runs" and vm is not None and vm.state.managed_by is not None


@pytest.mark.parametrize("nth", mostly_long([6, 1], [6]))
def test_no_night_touches_a_vm_of_another_product(nth: int) -> None:
    effect_count = 0
    for seed in every_nth(range(60), nth):
        night = managed_night(seed)
        assert list(touched_vms(night)) == []
        assert [violation for violation in violations(night) if not _is_of_others_now(night, violation)] == []
        effect_count += len(effects(night))
    assert effect_count * nth > 300, "these nights did something"


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_a_desktop_that_is_handed_over_while_it_is_suspended_comes_back(nth: int) -> None:
    """Its user gets it back although another product manages the VM now; no other VM stays suspended either."""
    came_back = 0
    for seed in every_nth(range(40), nth):
        night = managed_night(seed, quiet=True)
        handed = {change.moid: change.at for change in night.world.ledger if change.after.get("managed_by")}
        assert list(desktops_back(night)) == [], "one whose GPUs an ML VM of another product holds is named"
        suspended_at: dict[str, datetime] = {}
        for entry in effects(night):
            if takes(entry):
                suspended_at[entry.moid] = entry.at
            elif entry.method == START and entry.moid in suspended_at:
                taken_at = suspended_at.pop(entry.moid)
                came_back += entry.moid in handed and taken_at < handed[entry.moid] < entry.at
    assert came_back > 10 // nth**2


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


def reserved_night(seed: int) -> Played | None:
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
        night = reserved_night(seed)
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
