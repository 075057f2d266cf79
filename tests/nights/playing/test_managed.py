"""Seeded nights among VMs that belong to other products, from the evening on or from some moment of the night: none of
them is touched, but for what a night has taken before that and gives back.

The ledger tells what was done, and which VM was whose when it was done; nothing here asks the engine or its rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Final

import pytest

from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.world import World
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import NIGHT_S, schedule_of
from tests.nights.judging.checkers import desktops_back, violations
from tests.nights.judging.doings import CALL, MARK, START, effects, takes
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


def night_of(seed: int, *, quiet: bool = False) -> Played:
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
        night = night_of(seed)
        assert list(touched_vms(night)) == []
        assert [violation for violation in violations(night) if not _is_of_others_now(night, violation)] == []
        effect_count += len(effects(night))
    assert effect_count * nth > 300, "these nights did something"


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_a_desktop_that_is_handed_over_while_it_is_suspended_comes_back(nth: int) -> None:
    """Its user gets it back although another product manages the VM now; no other VM stays suspended either."""
    came_back = 0
    for seed in every_nth(range(40), nth):
        night = night_of(seed, quiet=True)
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
