"""Teams in the queue of a night: which is served first, which waits and why; without teams nothing changes."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from datetime import time as clock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.model.nights.fair_share import NO_OWNER, FairShare, Team, TeamLimits
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Window
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.night_plan import NightPlan
from tests.plan.rotation import drawn_fleet as fleet
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm

CATALOG = catalog()
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
BY_TEAM = OwnerKey("attribute", "team")
HOURS = 9.0
"""From the evening until desktops are due, at 6:00."""


def world(*teams: str, hosts: int = 1, profile: str = "nvidia_a40-48c", **fields: object) -> Inventory:
    """Hosts of two free A40, and a VM of one GPU for each team, in this order: ml-1, ml-2 ... `-` = no owner."""
    all_hosts = [host(f"esx-{number}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)) for number in range(1, hosts + 1)]
    waiting = [ml(number, team, profile) for number, team in enumerate(teams, 1)]
    return replace(inventory(all_hosts, waiting), taken_at=EVENING)


def ml(number: int, team: str, profile: str = "nvidia_a40-48c", power: PowerState = PowerState.OFF) -> Vm:
    attributes = {} if team == "-" else {"team": team}
    return vm(number, f"ml-{number}", "1", f"vgpu {profile}", power=power, attributes=attributes, memory_mib=8192,
              memory_reservation_mib=8192)  # fmt: skip


def policy(shares: FairShare | None, *queued_vms: QueuedVm, number: int = 9) -> Policy:
    queue = queued_vms or tuple(QueuedVm(f"ml-{index}", relocate=True) for index in range(1, number + 1))
    return Policy("night", (), ml=queue, windows=(Window(clock(20), clock(6), UTC),), fair_share=shares, digest="d")


def shares(*teams: Team) -> FairShare:
    return FairShare(BY_TEAM, teams=teams)


def past(**hours: float) -> tuple[PastNight, ...]:
    """Nights of the last days in which a VM of each team had so many GPU-hours: of `ml_1` those of ml-1."""
    vms = tuple(
        PastVm(f"vm-{name[3:]}", f"uuid-{name[3:]}", name, Role.ML, (), 1.0,
               (HeldPeriod(EVENING - timedelta(hours=hours_of_vm), EVENING),), closed=True)
        for name, hours_of_vm in hours.items()
    )  # fmt: skip
    return (PastNight("2026-11-19", "vc", EVENING, "night", (), vms, ()),)


def night(snapshot: Inventory, of: Policy, nights: tuple[PastNight, ...] = ()) -> NightPlan:
    request = RotateNight(of, past=nights)
    return request.night_plan(request.survey_desktops(snapshot, CATALOG, EVENING), snapshot, CATALOG, EVENING)


def started_names(night_plan: NightPlan) -> list[str]:
    return sorted(start.vm.name for start in night_plan.decision.starts)


def reasons(night_plan: NightPlan) -> dict[str, str]:
    return {choice.subject: choice.reason for choice in night_plan.decision.choices}


def test_of_one_priority_the_team_that_had_less_comes_first() -> None:
    night_plan = night(world("a", "a", "a", "b"), policy(shares(), number=4), past(ml_1=30))
    assert [waits.name for waits in night_plan.queue] == ["ml-4", "ml-1", "ml-2", "ml-3"]
    assert started_names(night_plan) == ["ml-1", "ml-4"]
    assert reasons(night_plan)["ml-2"].endswith("fair share: team a has had 100% recently, its share is 50%")


def test_without_teams_the_file_s_order_stands() -> None:
    night_plan = night(world("a", "a", "a", "b"), policy(None, number=4), past(ml_1=30))
    assert started_names(night_plan) == ["ml-1", "ml-2"]
    assert "fair share" not in " ".join(reasons(night_plan).values())
    assert night_plan.shares is None


def test_a_higher_priority_is_served_first_whatever_its_team_had() -> None:
    queued_vms = (QueuedVm("ml-1", priority=5), QueuedVm("ml-2"), QueuedVm("ml-3"))
    night_plan = night(world("a", "a", "b"), policy(shares(), *queued_vms), past(ml_1=100))
    assert [waits.name for waits in night_plan.queue] == ["ml-1", "ml-3", "ml-2"]
    assert started_names(night_plan) == ["ml-1", "ml-3"]


def test_a_vm_that_starts_for_a_job_counts_for_the_jobs_owner() -> None:
    queued_vms = (QueuedVm("ml-1", owner="b"), QueuedVm("ml-2"), QueuedVm("ml-3"))
    night_plan = night(world("-", "a", "a"), policy(shares(Team("b", 1, TeamLimits(0.5))), *queued_vms), past(ml_2=30))
    assert night_plan.shares is not None and night_plan.shares.team_by_vm == {"vm-1": "b", "vm-2": "a", "vm-3": "a"}
    assert started_names(night_plan) == ["ml-2", "ml-3"] and "team b has 0 of 0.5 GPUs" in reasons(night_plan)["ml-1"]
    request = RotateNight(policy(shares(), *queued_vms))
    snapshot = world("-", "a", "a")
    plan = request.plan(snapshot, CATALOG, EVENING)
    noted = {
        original.name: original.owner.owner
        for original in request.originals_of(plan, snapshot, EVENING)
        if original.owner is not None
    }
    assert noted == {"ml-1": "b", "ml-2": "a"}


def test_twice_the_weight_is_twice_the_gpus() -> None:
    night_plan = night(world(*"bbbbbbaaaaaa", hosts=3), policy(shares(Team("a", weight=2)), number=12))
    names = started_names(night_plan)
    assert len(names) == 6
    assert sum(int(name[3:]) > 6 for name in names) == 4


def test_who_finds_no_room_keeps_nobody_from_it() -> None:
    """The first of the queue needs two GPUs of one host, and one is free."""
    two = vm(1, "ml-1", "1", "vgpu nvidia_a40-48c", "vgpu nvidia_a40-48c", attributes={"team": "a"})
    runs = ml(3, "c", power=PowerState.ON)
    snapshot = inventory([replace(h, gpus=(replace(h.gpus[0], vms=("vm-3",)), h.gpus[1]))
                          for h in (host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)),)],
                         [two, ml(2, "b"), runs])  # fmt: skip
    night_plan = night(
        replace(snapshot, taken_at=EVENING), policy(shares(), QueuedVm("ml-1"), QueuedVm("ml-2")), past(ml_2=50)
    )
    assert [waits.name for waits in night_plan.queue] == ["ml-1", "ml-2"]
    assert started_names(night_plan) == ["ml-2"]


def test_no_start_takes_a_team_over_its_gpus_at_once() -> None:
    limits = shares(Team("a", 1, TeamLimits(1.5)))
    night_plan = night(world("a", "a", "b", hosts=2), policy(limits, number=3))
    assert started_names(night_plan) == ["ml-1", "ml-3"]
    assert reasons(night_plan)["ml-2"] == "team a has 1 of 1.5 GPUs at once, and this VM takes 1"
    running = world("a", "a", hosts=2).with_vm(ml(1, "a", power=PowerState.ON))
    assert started_names(night(running, policy(limits, number=2))) == [], (
        "a running VM counts, also if a user started it"
    )


def test_no_start_takes_a_team_over_its_gpu_hours_of_the_week() -> None:
    """From 21:00 until 6:00 a VM of one GPU may take 9."""
    of = world("a", "a", "b", hosts=2)

    def reasons_with(most: float, had: float) -> dict[str, str]:
        return reasons(night(of, policy(shares(Team("a", 1, TeamLimits(None, most))), number=3), past(ml_1=had)))

    assert reasons_with(100, 100)["ml-1"] == "team a has used 100 of 100 GPU-hours of the last 7 days"
    assert reasons_with(100, 91)["ml-1"].startswith("starts on")
    assert reasons_with(100, 91)["ml-2"] == (
        "team a has used 91 of 100 GPU-hours of the last 7 days, VMs that run or start before it may use 9, and this "
        "VM 9 tonight"
    )
    assert (
        reasons_with(100, 91.5)["ml-1"]
        == "team a has used 91.5 of 100 GPU-hours of the last 7 days, and this VM 9 tonight"
    )
    assert reasons_with(0, 0)["ml-1"] == "team a has used 0 of 0 GPU-hours of the last 7 days"
    assert reasons_with(100, 100)["ml-3"].startswith("starts on")


def test_what_a_night_has_started_goes_on_until_desktops_are_due() -> None:
    snapshot = world("a", "a", hosts=2).with_vm(ml(1, "a", power=PowerState.ON))
    runs = PastVm("vm-1", "uuid-1", "ml-1", Role.ML, (), 1.0, (HeldPeriod(EVENING - timedelta(hours=1)),), closed=False)
    nights = (PastNight("2026-11-20", "vc", EVENING, "night", (), (runs,), ()),)
    night_plan = night(snapshot, policy(shares(Team("a", 1, TeamLimits(None, 18.5))), number=2), nights)
    assert reasons(night_plan)["ml-2"] == (
        "team a has used 1 of 18.5 GPU-hours of the last 7 days, VMs that run or start before it may use 9, and this "
        "VM 9 tonight"
    )
    assert started_names(night(snapshot, policy(shares(Team("a", 1, TeamLimits(None, 19))), number=2), nights)) == [
        "ml-2"
    ]


def test_without_a_window_a_start_needs_hours_that_are_left() -> None:
    of = policy(shares(Team("a", 1, TeamLimits(None, 50))), number=1)
    open_ended = replace(of, windows=(), any_time=True)
    assert started_names(night(world("a"), open_ended, past(ml_1=49))) == ["ml-1"]
    assert started_names(night(world("a"), open_ended, past(ml_1=50))) == []


def test_a_vm_that_is_held_back_leaves_its_place_to_the_next_of_its_team() -> None:
    """ml-1 would take two GPUs of the one that its team may have."""
    two = vm(1, "ml-1", "1", "vgpu nvidia_a40-48c", "vgpu nvidia_a40-48c", attributes={"team": "a"})
    night_plan = night(world("a", "a").with_vm(two), policy(shares(Team("a", 1, TeamLimits(1))), number=2))
    assert started_names(night_plan) == ["ml-2"]


def test_nobody_s_vms_are_a_team_that_is_named() -> None:
    night_plan = night(world("-", "a", "-"), policy(shares(Team(NO_OWNER, 1, TeamLimits(1))), number=3))
    assert started_names(night_plan) == ["ml-1", "ml-2"]
    assert night_plan.plan().warnings == ("ML queue: ml-1, ml-3: no owner (attribute:team); served as team (no owner)",)


def test_several_tags_are_a_team_of_their_own() -> None:
    tagged = replace(ml(1, "-"), tags=("team:b", "team:a", "site:x"))
    snapshot = replace(world("a", "a"), vms={"vm-1": tagged, "vm-2": replace(ml(2, "-"), tags=("team:a",))})
    night_plan = night(snapshot, policy(FairShare(OwnerKey("tag", "team")), number=2))
    assert [waits.team for waits in night_plan.queue] == ["a, b", "a"]
    assert night_plan.plan().warnings == (
        "ML queue: ml-1: several owners (tag:team); served as a team of its own, 'a, b'",
    )


def test_halves_of_two_teams_share_the_gpu_that_is_freed_for_the_first() -> None:
    """Teams take turns, and no GPU is left half empty for that."""
    night_plan = night(world(*"aabb", profile="nvidia_a40-24c"), policy(shares(), number=4))
    assert started_names(night_plan) == ["ml-1", "ml-2", "ml-3", "ml-4"]


teams = st.lists(st.sampled_from("abc-"), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(teams, st.integers(0, 10**6))
def test_no_team_is_over_its_limits_and_no_vm_is_passed_over_without_a_reason(names: list[str], seed: int) -> None:
    rng = random.Random(seed)
    at_most = [TeamLimits(gpus, hours) for gpus in (None, 1.0, 2.0) for hours in (None, 0.0, 20.0, 60.0)]
    limits = [Team(name, rng.choice([1, 2]), rng.choice(at_most)) for name in "abc"]
    had = {f"ml_{number}": rng.uniform(0, 40) for number in range(1, len(names) + 1) if rng.random() < 0.5}
    profile = rng.choice(["nvidia_a40-48c", "nvidia_a40-24c"])
    gpus = 1.0 if profile.endswith("48c") else 0.5
    snapshot = world(*names, hosts=rng.choice([1, 2]), profile=profile)
    night_plan = night(snapshot, policy(shares(*limits), number=len(names)), past(**had))
    on = started_names(night_plan)
    for team in limits:
        team_vms = {f"ml-{number}" for number, name in enumerate(names, 1) if name == team.name}
        runs = gpus * len(team_vms.intersection(on))
        assert team.at_most.gpus is None or runs <= team.at_most.gpus
        week = sum(hours for name, hours in had.items() if name.replace("_", "-") in team_vms)
        most_hours = team.at_most.gpu_hours_per_week
        assert most_hours is None or not runs or week + runs * HOURS <= most_hours + 1e-6
    # All VMs are alike, and may go anywhere: where one finds no room, none behind it starts.
    places = [
        place for place, waits in enumerate(night_plan.queue) if "does not fit" in reasons(night_plan)[waits.name]
    ]
    after = night_plan.queue[min(places, default=len(names)) :]
    assert not any(waits.name in on for waits in after)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("seed", range(12))
def test_one_team_alone_has_the_night_that_it_had_without_teams(seed: int) -> None:
    """In drawn fleets: the same steps to the last, so that teams cost nothing where there is nothing to share."""
    rng = random.Random(seed)
    hosts, ml_vms = rng.choice([3, 6, 12]), rng.choice([6, 15, 24])
    snapshot = fleet.world(seed, hosts=hosts, desktops=8 * hosts, ml_vms=ml_vms)
    plain = fleet.policy(ml_vms)
    queued_vms = tuple(replace(queued_vm, priority=rng.choice([0, 0, 5])) for queued_vm in plain.ml)
    plain = replace(plain, ml=tuple(sorted(queued_vms, key=lambda queued_vm: -queued_vm.priority)))
    shared = replace(plain, fair_share=FairShare(OwnerKey()))
    without_teams, with_teams = (
        RotateNight(policy_of_night).plan(snapshot, CATALOG, EVENING) for policy_of_night in (plain, shared)
    )
    assert without_teams.waves == with_teams.waves
    assert any(isinstance(step, PowerOnVm) for step in without_teams.steps)
