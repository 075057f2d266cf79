"""Two policies that select the same desktops: the floors of both hold while their nights are open."""

from __future__ import annotations

from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation import Policy
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import SuspendVm
from tests.execute.nights import POLICY_TEXT, Night, effects
from tests.execute.small_vcenter import SmallVcenter, ml


def policy_of(name: str, floor: int, ml_vm: str) -> Policy:
    text = POLICY_TEXT.replace("name: small", f"name: {name}").replace(
        "parked: true", f"parked: true\n    floor: {floor}"
    )
    return parse_policy(text.replace("{vm: ml-01}, {vm: ml-02}", f"{{vm: {ml_vm}}}"), name)


def night_of(night: Night, policy: Policy) -> Report:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    return rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)


def count_suspended(night: Night) -> int:
    return len(effects(night.world, SuspendVm))


def test_the_floor_of_an_open_night_holds_for_another_policy(night: Night) -> None:
    """Five desktops: ml-01 needs the GPU of two, ml-03 that of the other three."""
    night.world.vms["vm-93"] = ml(3, "host-1")
    assert night_of(night, policy_of("early", 2, "ml-01")).exit_code == 0
    assert count_suspended(night) == 2
    report = night_of(night, policy_of("late", 0, "ml-03"))
    assert report.exit_code == 0
    assert count_suspended(night) == 2, "three run, two must, and one is not enough for ml-03"
    assert "the floors of policy early hold as well: its night is open" in report.plan.because
    reasons = {choice.reason for choice in report.plan.choices}
    assert "floor: 2 of pool all of policy early, whose night is open, stay running" in reasons


def test_a_floor_that_another_night_has_broken_is_named(night: Night) -> None:
    """The journal did not know the other policy when that night took its desktops."""
    assert night_of(night, policy_of("late", 0, "ml-01")).exit_code == 0
    report = night_of(night, policy_of("early", 4, "ml-02"))
    assert (report.exit_code, count_suspended(night)) == (4, 2)
    [broken] = report.plan.unmet
    assert broken.subject == "pool all"
    assert broken.rule.startswith("floor: 4 must stay running, 3 do: night 2")
    assert broken.rule.endswith(" of policy late has taken 2")
