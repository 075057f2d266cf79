"""Each fault of the simulator that undoes a setting is named within 60 s, set back if allowed, and else left alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.execute.site import Site
from gpuops.extras.declare.applying import apply_site
from gpuops.extras.declare.drift import DriftLook, DriftWatch, follow
from gpuops.extras.declare.view import subject
from gpuops.extras.declare.wishes import SiteDifference
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.sim.core.ledger import Entry
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.board import GpuMode
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.declare.undoing import SimulatedSsh, entities_called, undo
from tests.declare.worlds import site_of
from tests.wire.conftest import target_of
from tests.wire.hosts.clusters import cluster

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "drifts.yaml").read_text(encoding="utf-8"))
WATCHED_S = 180.0
"""How long a watch goes on after vCenter shows what was undone."""


class Enough(Exception):
    """Ends a watch."""


@dataclass
class Watched:
    """A watch of one case: what it showed, and when vCenter began to show what was undone."""

    case: dict[str, Any]
    world: World
    looks: list[DriftLook] = field(default_factory=list)
    visible_at: datetime | None = None
    effects: int = 0
    """How many changes the ledger had when the watch began."""

    def show(self, look: DriftLook) -> None:
        self.looks.append(look)
        if self.visible_at is None:
            assert differing(look) == [], "at first nothing differs"
            for action in self.case["undo"]:
                undo(self.world, action)
            self.visible_at = self.world.clock.now() + timedelta(seconds=self.case.get("visible_after_s", 1))

    def pause(self, seconds: float) -> None:
        with self.world.lock:
            self.world.clock.advance(seconds)
        assert self.visible_at is not None
        if (self.world.clock.now() - self.visible_at).total_seconds() > WATCHED_S:
            raise Enough

    @property
    def own_changes(self) -> list[Entry]:
        return [entry for entry in self.world.ledger if entry.session and entry.sequence > self.effects]

    def named_after_s(self, name: str) -> float:
        assert self.visible_at is not None
        [*moments] = [look.at for look in self.looks if look.at >= self.visible_at and name in news_of(look)]
        assert moments, f"{name} is not named: {[news_of(look) for look in self.looks]}"
        return (moments[0] - self.visible_at).total_seconds()


def in_words(difference: SiteDifference) -> str:
    pending = " (pending)" if difference.pending else ""
    return f"{subject(difference)} {difference.key}{pending}"


def news_of(look: DriftLook) -> list[str]:
    return [*map(in_words, look.drifted), *(str(rejection) for rejection in look.unmatched)]


def differing(look: DriftLook) -> list[str]:
    return sorted([*map(in_words, look.remaining), *(str(rejection) for rejection in look.unmatched)])


def watched(case: dict[str, Any], folder: Path, heals: Collection[str], *, reboots: bool = False) -> Watched:
    """Return the watch of a case, which went on for three minutes. Its world is `lab` unless it has another."""
    world = case.get("world") or build("lab")
    for action in case.get("first", ()):
        undo(world, action)
    world.clock.advance(10)
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        watch = Watched(case, world)
        shell = NvidiaSmi(SimulatedSsh(world))  # type: ignore[arg-type]
        clock = world.clock
        site = Site(connection, folder, clock.now, passed_s=lambda: clock.now().timestamp(), shell=shell)
        file = site_of(yaml.safe_dump({"version": 1, **case["file"]}))
        if case.get("applied"):
            assert apply_site(file, site, apply=True).remaining == ()
        watch.effects = len(world.ledger)
        site.pause = watch.pause
        with pytest.raises(Enough):
            follow(DriftWatch(file, site, tuple(heals), reboots=reboots), watch.show)
    return watch


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", CASES)
def test_what_is_undone_is_named_within_a_minute_and_left_alone(name: str, tmp_path: Path) -> None:
    watch = watched(CASES[name], tmp_path, ())
    for text in CASES[name]["named"]:
        assert watch.named_after_s(text) <= 60
    assert differing(watch.looks[-1]) == sorted(CASES[name]["named"])
    assert watch.own_changes == []


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "heal" in case])
def test_what_may_be_set_back_is(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    watch = watched(case, tmp_path, (case["heal"],))
    assert differing(watch.looks[-1]) == sorted(case.get("remains", ()))
    if "why" in case:
        assert case["why"] in str(watch.looks[-1].refusals)
    else:
        assert any(report.changed for look in watch.looks for report in look.healed)


def test_what_drifts_is_named_while_a_rotation_holds_the_lock(tmp_path: Path) -> None:
    world = build("lab")
    clock = world.clock
    file = site_of(yaml.safe_dump({"version": 1, **CASES["the assignment policy is changed"]["file"]}))
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        site = Site(connection, tmp_path, clock.now)
        watch = DriftWatch(file, site, ("assignment",))
        with Site(connection, tmp_path, clock.now).locked_journal(connection.uuid, alone=True):
            undo(world, {"do": "graphics", "at": "esx-01.lab", "policy": "consolidation"})
            look = watch.look()
            assert [in_words(difference) for difference in look.drifted] == ["esx-01.lab assignment"]
            assert [refusal.subject for refusal in look.refusals] == ["drift"]
            assert (look.healed, look.exit_code, watch.look().has_news) == ((), 3, False)
        assert [report.changed for report in watch.look().healed] == [True]


LOST_MIG = {**CASES["a host crashes and comes back without MIG mode"], "remains": []}


def host_changes(watch: Watched) -> list[str]:
    """Return what the ledger has of maintenance mode and reboots, and of starts of VMs."""
    methods = ("EnterMaintenanceMode_Task", "RebootHost_Task", "ExitMaintenanceMode_Task", "PowerOnVM_Task")
    entries = [entry for entry in watch.world.ledger if entry.method in methods]
    return list(dict.fromkeys(entry.method for entry in entries))


def test_mig_mode_is_in_force_again_before_a_vm_starts_on_a_host_that_came_back(tmp_path: Path) -> None:
    watch = watched(LOST_MIG, tmp_path, ("mig",), reboots=True)
    assert differing(watch.looks[-1]) == []
    assert [gpu.mode for gpu in entities_called(watch.world, "esx-01.lab")[0].state.gpus[:2]] == [
        GpuMode.MULTI_INSTANCE, GpuMode.MULTI_INSTANCE
    ]  # fmt: skip
    assert host_changes(watch) == ["EnterMaintenanceMode_Task", "RebootHost_Task", "ExitMaintenanceMode_Task"]
    assert not any(report.failed for look in watch.looks for report in look.healed)


def test_a_host_on_which_a_vm_started_first_is_not_rebooted(tmp_path: Path) -> None:
    undone = [*LOST_MIG["undo"], {"do": "starts when its host is back", "at": "vdi-01", "after_s": 300}]
    watch = watched({**LOST_MIG, "undo": undone}, tmp_path, ("mig",), reboots=True)
    assert differing(watch.looks[-1]) == [
        "esx-01.lab 0000:3b:00.0 mig (pending)", "esx-01.lab 0000:af:00.0 mig (pending)"
    ]  # fmt: skip
    assert host_changes(watch) == ["PowerOnVM_Task"]


@pytest.mark.parametrize("reboots", [False, True])
def test_from_hopper_on_mig_mode_is_in_force_at_once(reboots: bool, tmp_path: Path) -> None:
    world = cluster(1, [], gpus=2, board="h100", mode="multiInstanceGpu")
    undone = [{**action, "at": "esx-01"} for action in LOST_MIG["undo"]]
    case = {**LOST_MIG, "world": world, "undo": undone, "file": {"hosts": [{"host": "esx-01", "mig": True}]}}
    watch = watched(case, tmp_path, ("mig",), reboots=reboots)
    assert differing(watch.looks[-1]) == []
    maintenance = ["EnterMaintenanceMode_Task", "ExitMaintenanceMode_Task"]
    assert host_changes(watch) == (maintenance if reboots else []), "a reboot would end MIG mode again"
