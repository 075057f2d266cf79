"""Plays random sites by seed: applies their files, judges the end, and kills the call at each line of the journal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps import step_executor
from gpuops.extras.declare.applying import SiteReport, apply_site, plan_site, read_for
from gpuops.extras.declare.wishes import compare
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.hostshell.ssh import CommandResult
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from gpuops.vsphere import watches
from gpuops.vsphere.connection import Connection
from tests.declare.worlds import misfits, one_subject_each, other_values, random_file, random_world, site_of
from tests.harness.killing import Countdown, Killed
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of

POLL_S: Final = 300.0
"""A host that boots is polled this often, in simulated time."""


@dataclass
class Play:
    """A site that is played: its world, its file, and the state directory of gpuops."""

    world: World
    text: str
    server: SimServer
    state_dir: Path
    faults: list[str] = field(default_factory=list)
    """What was not as it should be."""

    def on_site(self, act: Callable[[Site], Any]) -> Any:
        """Do this in a login of its own."""
        with Connection(target_of(self.server)) as connection:
            shell = NvidiaSmi(SimulatedSsh(self.world))  # type: ignore[arg-type]
            return act(Site(connection, self.state_dir, self.world.clock.now, shell=shell))

    def apply(self) -> SiteReport:
        report = self.on_site(lambda site: apply_site(site_of(self.text), site, Rolling(), apply=True))
        assert isinstance(report, SiteReport)
        return report

    def require(self, holds: object, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


@contextmanager
def playing(world: World, text: str, folder: Path) -> Any:
    """Serve a world and yield the play on it."""
    with (
        patch.object(step_executor, "SLICE_S", POLL_S),
        patch.object(watches, "SLICE_S", POLL_S),
        SimServer(world) as server,
    ):
        yield Play(world, text, server, folder)


def play_seed(seed: int, folder: Path) -> tuple[str, list[str]]:
    """Return what became of the file of this seed (`applied`, `refused`, `nothing to do`), and what was wrong."""
    random = Random(seed)
    world = random_world(random)
    with playing(world, random_file(random, world), folder) as play:
        effects = len(world.ledger)
        report = play.apply()
        if not report.feasible:
            _judge_refusal(play, report, effects)
            return "refused", play.faults
        _judge_end(play, report)
        return "applied" if report.changed else "nothing to do", play.faults


def _judge_refusal(play: Play, report: SiteReport, effects: int) -> None:
    """An infeasible file is refused completely, with the reasons of each host and VM that is infeasible by itself."""
    play.require(len(play.world.ledger) == effects, "refused, and something was changed")
    planned = play.on_site(lambda site: plan_site(site_of(play.text), site, Rolling()))
    play.require(planned.rejections == report.rejections, "the plan has other reasons than the call")
    named = {rejection.subject.split()[0] for rejection in report.rejections}
    for name, text in one_subject_each(play.text, play.world):
        alone = play.on_site(partial(plan_site, site_of(text)))
        play.require(alone.feasible or name in named, f"{name} is infeasible, and the refusal does not name it")


def _judge_end(play: Play, report: SiteReport) -> None:
    """Nothing differs, by gpuops and by the reader; a second call changes nothing; each other value differs."""
    play.require(report.exit_code == 0, f"exit code {report.exit_code}: {[*report.unmet, *report.failures]}")
    play.require(not report.remaining, f"still differs: {report.remaining}")
    play.faults += misfits(play.text, play.world)
    effects = len(play.world.ledger)
    again = play.apply()
    play.require(not again.differences and not again.changed, f"a second call differs: {again.differences}")
    play.require(len(play.world.ledger) == effects, "a second call changed something")

    def change_keys(site: Site) -> None:
        inventory = read_for(site_of(play.text), site)
        for key, other_text in other_values(play.text):
            other = compare(site_of(other_text), inventory, catalog_of(inventory), site.clock())
            play.require(other.differences, f"{key} is changed, and nothing differs")

    play.on_site(change_keys)


def play_kill(make: Callable[[], tuple[World, str]], line: int, folder: Path) -> tuple[bool, list[str]]:
    """Kill the call before (even) or after (odd) line `line // 2` of the journal, and apply again to the same end.

    Return whether the call was killed, since it may have fewer lines, and what was wrong.
    """
    world, text = make()
    with playing(world, text, folder) as play:
        with Countdown(line // 2 + 1, after=line % 2 == 1).of_the_journal():
            try:
                play.apply()
                was_killed = False
            except Killed:
                was_killed = True
        report = play.apply()
        play.require(not report.rejections, f"refused afterwards: {report.rejections}")
        play.require(report.exit_code == 0, f"exit code {report.exit_code}: {[*report.unmet, *report.failures]}")
        play.require(not report.remaining, f"still differs: {report.remaining}")
        play.faults += misfits(text, world)
        return was_killed, play.faults


def entities_called(world: World, pattern: str) -> list[Any]:
    """Return the hosts and VMs with such a name, at least one."""
    entities = (*world.by_type("HostSystem"), *world.by_type("VirtualMachine"))
    selected = [entity for entity in entities if fnmatchcase(entity.name, pattern)]
    assert selected, pattern
    return selected


@dataclass(frozen=True)
class SimulatedSsh:
    """Enters the hosts of a simulated vCenter in this process, in place of `Ssh`."""

    world: World

    def run(self, host: str, command: str, **options: Any) -> CommandResult:
        """Return what the host's nvidia-smi prints. A host that is down prints nothing."""
        with self.world.lock:
            [entity] = entities_called(self.world, host)
            if entity.state.connection != "connected":
                return CommandResult("", "no route to host", 255)
            text, status = nvidia_smi.answer(entity, command)
        return CommandResult(text, "", status)
