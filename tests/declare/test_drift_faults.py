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
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.declare.undoing import SimulatedSsh, undo
from tests.declare.worlds import site_of
from tests.wire.conftest import target_of

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


def watched(case: dict[str, Any], folder: Path, heals: Collection[str]) -> Watched:
    """Return the watch of a case, which went on for three minutes."""
    world = build("lab")
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
            follow(DriftWatch(file, site, tuple(heals)), watch.show)
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
