"""`apply` on random clusters and files, against an independent reader of the simulator's state; killed at each line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpuops.execute.journal import Journal
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps import step_executor
from gpuops.extras.declare.applying import SiteReport, apply_site, plan_site, read_for
from gpuops.extras.declare.wishes import compare
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from gpuops.vsphere import watches
from gpuops.vsphere.connection import Connection
from tests.declare.worlds import misfits, other_values, random_file, random_world, site_of
from tests.wire.conftest import target_of
from tests.wire.cutting_off import CutOffHere

OnSite = Callable[[Callable[[Site], Any]], Any]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[World], OnSite]]:
    """Serves a world, and returns what does something in a login of its own; boots are polled every five minutes."""
    for module in (step_executor, watches):
        monkeypatch.setattr(module, "SLICE_S", 300.0)
    with ExitStack() as stack:

        def begin(world: World) -> OnSite:
            server = stack.enter_context(SimServer(world))

            def on_site(act: Callable[[Site], Any]) -> Any:
                with Connection(target_of(server)) as connection:
                    return act(Site(connection, tmp_path / "state", world.clock.now))

            return on_site

        yield begin


def applied(text: str, on_site: OnSite) -> SiteReport:
    report = on_site(lambda site: apply_site(site_of(text), site, Rolling(), apply=True))
    assert isinstance(report, SiteReport)
    return report


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("seed", range(1000))
def test_a_random_site_becomes_what_its_file_says(seed: int, serve: Callable[[World], OnSite]) -> None:
    random = Random(seed)
    world = random_world(random)
    text, on_site = random_file(random, world), serve(world)
    effects = len(world.ledger)
    report = applied(text, on_site)
    if not report.feasible:
        assert len(world.ledger) == effects, "an infeasible file is refused completely"
        assert on_site(lambda site: plan_site(site_of(text), site, Rolling())).rejections == report.rejections
        return
    assert (report.exit_code, report.remaining) == (0, ())
    assert misfits(text, world) == []
    effects = len(world.ledger)
    again = applied(text, on_site)
    assert (again.differences, again.changed, len(world.ledger)) == ((), False, effects)

    def changed_keys(site: Site) -> None:
        inventory = read_for(site_of(text), site)
        for key, other_text in other_values(site_of(text), text):
            other = compare(site_of(other_text), inventory, catalog_of(inventory), site.clock())
            assert other.differences, f"{key} is changed, and nothing differs"

    on_site(changed_keys)


FILE = """
version: 1
hosts:
  - {host: '*', scheduler: equal-share, assignment: consolidation}
  - {host: '*', gpu: '0000:af:00.0', passthrough: true, label: ml}
vms:
  - {vm: vm-*, marks: [{attribute: team, value: blue}]}
  - {vm: vm-01, devices: {profile: a40-8q}, drs: manual}
"""
SEED = 14


def test_the_world_that_is_killed_has_something_of_everything(serve: Callable[[World], OnSite]) -> None:
    report = serve(random_world(Random(SEED)))(lambda site: plan_site(site_of(FILE), site, Rolling()))
    assert report.feasible, report.rejections
    assert {difference.title for difference in report.differences} >= {
        "scheduler", "assignment", "passthrough", "label", "devices", "drs", "mark team"
    }  # fmt: skip
    assert report.roll.rounds


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("line", range(60))
def test_killed_at_a_line_of_the_journal_and_applied_again_the_end_is_the_same(
    line: int, serve: Callable[[World], OnSite], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = random_world(Random(SEED))
    on_site = serve(world)
    append, lines = Journal._append, iter(range(1000))

    def append_or_end(journal: Journal, drafted: Any) -> Any:
        if (number := next(lines)) == line and number % 2:
            raise CutOffHere
        state = append(journal, drafted)
        if number == line:
            raise CutOffHere
        return state

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_append", append_or_end)
        with suppress(CutOffHere):
            applied(FILE, on_site)
    report = applied(FILE, on_site)
    assert (report.rejections, report.exit_code, report.remaining) == ((), 0, ())
    assert misfits(FILE, world) == []
