"""What the files of mornings say, and names that leave the policy's pattern: nothing is kept away by either."""

from __future__ import annotations

from dataclasses import fields
from fnmatch import fnmatchcase

import pytest

from gpuops.model.nights.rotation import Policy
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.faults.cron import policies_in_the_morning
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import START, SUSPEND, effects
from tests.nights.playing.night import play
from tests.nights.world.worlds import STRICT, site_of

pytestmark = pytest.mark.long

SEEDS = range(0, 2000, 2)


def edits(edited: Policy, policy: Policy) -> int:
    """How many things the file says in another way."""
    return sum(getattr(edited, field.name) != getattr(policy, field.name) for field in fields(Policy))


def has_several_edits(seed: int) -> bool:
    policy = site_of(seed).policy
    return all(edits(edited, policy) >= 2 for edited in policies_in_the_morning(seed, policy))


def test_one_night_in_twenty_has_several_edits_at_once() -> None:
    mixed_seeds = [seed for seed in SEEDS[:400] if has_several_edits(seed)]
    assert len(SEEDS[:400]) / 40 < len(mixed_seeds) < len(SEEDS[:400]) / 8
    policies = [policies_in_the_morning(seed, site_of(seed).policy) for seed in mixed_seeds]
    assert any(len(policy) > 1 for policy in policies), "and other ones between two returns"
    assert any(edited_policy.marker != "gpuops.rotation" for several in policies for edited_policy in several)


def test_they_keep_nobody_away() -> None:
    returned = 0
    for seed in [seed for seed in SEEDS[:400] if has_several_edits(seed)][:8]:
        night = play(seed, ())
        assert violations(night) == []
        returned += len({entry.moid for entry in effects(night, SUSPEND)} & {e.moid for e in effects(night, START)})
    assert returned


def test_desktops_are_renamed_out_of_the_pattern_and_come_back() -> None:
    strict = [seed for seed in SEEDS if _pattern(seed) == "desktop-[0-9][0-9][0-9]"]
    assert len(SEEDS) / STRICT / 2 < len(strict) < len(SEEDS) / STRICT * 2
    back = 0
    for seed in strict[:8]:
        renamed = [rules_of("V6", {"target": f"desktop-{number:03}", "at_s": 4 * 3600.0}) for number in range(1, 13)]
        night = play(seed, [Event("V6", rules) for rules in renamed])
        assert violations(night) == []
        started = [entry for entry in effects(night, START) if entry.name.startswith("desktop-")]
        back += sum(not fnmatchcase(entry.name, _pattern(seed)) for entry in started)
    assert back > 10


def _pattern(seed: int) -> str:
    return site_of(seed).policy.pools[0].select.name or "*"
