"""`apply` on random clusters and files, against an independent reader of the simulator's state; killed at each line.
And what `export` writes: patterns for names, and comments."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gpuops.extras.declare.applying import plan_site
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.sim.world import World
from tests.declare.play import play_kill, play_seed, playing
from tests.declare.worlds import random_world, site_of
from tests.wire.hosts.clusters import ADDRESSES


@pytest.mark.quick_cases(6)
@pytest.mark.drawn_cases(16)
@pytest.mark.parametrize("seed", range(1000))
def test_a_random_site_becomes_what_its_file_says(seed: int, tmp_path: Path) -> None:
    assert play_seed(seed, tmp_path)[1] == []


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


LINES = 37
"""How many lines a complete call writes into the journal."""


def killed_world() -> tuple[World, str]:
    return random_world(Random(SEED)), FILE


def test_the_world_that_is_killed_has_something_of_everything(tmp_path: Path) -> None:
    with playing(*killed_world(), tmp_path) as play:
        report = play.on_site(lambda site: plan_site(site_of(FILE), site, Rolling()))
    assert report.feasible, report.rejections
    assert {difference.title for difference in report.differences} >= {
        "scheduler", "assignment", "passthrough", "label", "devices", "drs", "mark team"
    }  # fmt: skip
    assert report.roll.rounds


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("line", range(2 * LINES + 1))
def test_killed_at_a_line_of_the_journal_and_applied_again_the_end_is_the_same(line: int, tmp_path: Path) -> None:
    was_killed, faults = play_kill(killed_world, line, tmp_path)
    assert (was_killed, faults) == (line < 2 * LINES, []), "only the last case has no such line"


def test_mig_mode_for_all_hosts_says_nothing_about_gpus_without_it(tmp_path: Path) -> None:
    world, _ = killed_world()
    text = FILE.replace("{host: '*', scheduler", "{host: '*', mig: true, scheduler")
    with playing(world, text, tmp_path) as play:
        report = play.on_site(lambda site: plan_site(site_of(text), site, Rolling()))
    assert {difference.key for difference in report.differences if str(difference.gpu) == ADDRESSES[0]} == {"scheduler"}


@pytest.mark.parametrize("keys", ["label: ml", "passthrough: false, label: ml"])
def test_a_label_does_not_switch_a_gpu_to_directpath_io(keys: str, tmp_path: Path) -> None:
    world, _ = killed_world()
    text = f"version: 1\nhosts:\n  - {{host: '*', gpu: '{ADDRESSES[0]}', {keys}}}\n"
    gpus = [host.state.gpu(ADDRESSES[0]) for host in world.by_type("HostSystem")]
    assert not any(gpu.passthrough_enabled for gpu in gpus)
    with playing(world, text, tmp_path) as play:
        report = play.apply()
    assert (report.exit_code, report.remaining, report.roll.rounds) == (0, (), ())
    assert {difference.before for difference in report.differences} == {""}, "there was no label"
    assert {(gpu.passthrough_enabled, gpu.label) for gpu in gpus} == {(False, "ml")}
