"""Spare slots kept for desktops: starts that leave them free, which ML VMs stop for them, and that it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from types import MappingProxyType

from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import KeptSlots, Mode, Policy, SpareRule
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, RdmaKind
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest
from gpuops.plan.placement.keep_free import FreeSlots
from gpuops.plan.placement.project import project
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.nights.spare import (
    KeptState,
    SlotHistory,
    SpareRoom,
    StopsForDesktops,
    choose_ml_stops,
    kept_states,
)
from gpuops.plan.rotation.returns.restore import ml_stops_for, return_cheapest_desktops
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts, taken_vms
from tests.plan.snapshots import FIRST, SECOND, TAKEN_AT, catalog, gpu, host, inventory, on_gpu, vm

EIGHTH, HALF, WHOLE = "nvidia_a40-8q", "nvidia_a40-24c", "nvidia_a40-48c"
KEY = (EIGHTH, "domain-c1")
ON, OFF, SUSPENDED = PowerState.ON, PowerState.OFF, PowerState.SUSPENDED
RULE = SpareRule((KeptSlots(EIGHTH, 4),), calm_s=300)


def world(*running: tuple[str, str], waiting: Sequence[str] = (), hosts: int = 2) -> Inventory:
    """Hosts with two A40 each in one cluster. `running`: (host number and GPU as `1a`, profile), named vm-1 on."""
    all_hosts = [host(f"esx-{number:02}", gpu(FIRST, "a40"), gpu(SECOND, "a40", 1)) for number in range(1, hosts + 1)]
    refs_by_gpu: dict[tuple[int, str], list[str]] = {}
    vms: list[Vm] = []
    for number, (place, profile) in enumerate(running, 1):
        address = FIRST if place[1] == "a" else SECOND
        refs_by_gpu.setdefault((int(place[0]), address), []).append(f"vm-{number}")
        vms.append(vm(number, f"ml-{number:02}", place[0], f"vgpu {profile}", power=ON))
    for number, profile in enumerate(waiting, len(running) + 1):
        vms.append(vm(number, f"ml-{number:02}", "1", f"vgpu {profile}"))
    for (at, address), refs in refs_by_gpu.items():
        all_hosts[at - 1] = on_gpu(all_hosts[at - 1], address, *refs)
    return inventory(all_hosts, vms)


def policy(*queue: QueuedVm, rule: SpareRule = RULE) -> Policy:
    return Policy("spare", (), ml=queue or (QueuedVm("ml-*"),), mode=Mode.SPARE_CAPACITY, spare=rule)


def taken_by_night(of: Policy, snapshot: Inventory, ran: dict[str, float] | None = None) -> tuple[TakenVm, ...]:
    """All running VMs as started by a watch, so many minutes ago."""
    minutes = ran or {}
    originals = tuple(
        Original(
            "2026-03-02T10:00Z",
            Role.ML,
            vm.ref,
            vm.instance_uuid,
            vm.name,
            vm.host,
            vm.profiles,
            taken=True,
            started_at=TAKEN_AT - timedelta(minutes=minutes[vm.name]) if vm.name in minutes else None,
            policy=of,
        )
        for vm in snapshot.vms.values()
        if vm.power is ON
    )
    return taken_vms(of, originals, snapshot)


def gives(of: Policy, snapshot: Inventory, ran: dict[str, float] | None = None) -> StopsForDesktops:
    assert of.spare is not None
    return choose_ml_stops(of.spare, taken_by_night(of, snapshot, ran), snapshot, catalog(), TAKEN_AT)


def names(spared: StopsForDesktops) -> list[str]:
    return [vm.name for vm in spared.vms]


def test_what_is_kept_is_counted_in_each_cluster_and_on_hosts_of_none() -> None:
    snapshot = world(("1a", EIGHTH), ("1a", EIGHTH))
    assert [(state.key, state.free, state.kept, state.missing) for state in kept_states(RULE, snapshot, catalog())] == [
        (KEY, 22, 4, 0)
    ]
    alone = replace(snapshot.hosts["host-2"], cluster=None)
    apart = replace(snapshot, hosts={**snapshot.hosts, "host-2": alone})
    assert {state.key[1]: state.free for state in kept_states(RULE, apart, catalog())} == {
        "domain-c1": 10,
        "host-2": 12,
    }


def test_a_share_is_of_all_that_run_and_could() -> None:
    share = SpareRule((KeptSlots("a40-8q", percent=10),))
    [state] = kept_states(share, world(("1a", EIGHTH), ("1a", EIGHTH)), catalog())
    assert (state.free, state.kept) == (22, 3), "10 % of 24, rounded up"
    [state] = kept_states(share, world(("1a", WHOLE), ("1b", WHOLE), ("2a", WHOLE)), catalog())
    assert (state.free, state.kept) == (6, 1), "GPUs that others have are no slots of this profile"


def test_a_start_leaves_what_is_kept_counted_by_the_fewest_of_late() -> None:
    snapshot = world(("1a", WHOLE), ("1b", WHOLE), waiting=(HALF, HALF, HALF))
    start = Start(snapshot.vms["vm-3"], QueuedVm("ml-03"), snapshot.hosts["host-2"], ())
    second = replace(start, vm=snapshot.vms["vm-4"])

    def objection_after(lowest: int | None, *starts: Start) -> str:
        lowest_free = {} if lowest is None else {KEY: lowest}
        return SpareRoom(RULE, snapshot, catalog(), lowest_free).objection(starts)

    assert objection_after(None, start) == "gpu: it is not known yet that nvidia_a40-8q was free for 300 s"
    assert objection_after(12, start) == "", "6 of 12 are left"
    assert objection_after(10, start) == "", "two of the 12 were taken a while ago: 4 would have been left"
    assert (
        objection_after(9, start)
        == "gpu: 3 of nvidia_a40-8q would be left free (at least that many for 300 s), 4 are kept"
    )
    assert objection_after(12, start, second) == "gpu: 0 of nvidia_a40-8q would be left free, 4 are kept"


def test_what_takes_none_of_them_away_is_let_in_where_too_few_are_free() -> None:
    """A second half shares the GPU that the first has locked to its own size."""
    snapshot = world(("1a", WHOLE), ("1b", WHOLE), ("2a", WHOLE), ("2b", HALF), waiting=(HALF,))
    start = Start(snapshot.vms["vm-5"], QueuedVm("ml-05"), snapshot.hosts["host-2"], ())
    assert SpareRoom(RULE, snapshot, catalog(), {KEY: 0}).objection((start,)) == ""
    assert SpareRoom(RULE, snapshot, catalog()).start_objection(PowerOnVm("vm-5", "host-2")) is None


def test_just_before_a_start_the_present_counts() -> None:
    def objection_after(*desktops: tuple[str, str]) -> str | None:
        snapshot = world(("1a", WHOLE), ("1b", WHOLE), *desktops, waiting=(WHOLE,))
        step = PowerOnVm(f"vm-{len(desktops) + 3}", "host-2")
        return SpareRoom(RULE, snapshot, catalog()).start_objection(step)

    assert objection_after(("2a", EIGHTH), ("2a", EIGHTH)) is None, "4 of 10 are left"
    assert objection_after(*[("2a", EIGHTH)] * 3) == "gpu: 3 of nvidia_a40-8q would be left free, 4 are kept"


def test_the_history_knows_the_fewest_of_the_last_while() -> None:
    def state(free: int) -> KeptState:
        return KeptState(KEY, "gpu", 4, free)

    history = SlotHistory()
    assert history.lowest(0, 300) == {}
    for at, free in ((0, 9), (100, 5), (200, 9), (350, 8)):
        history = history.after(at, [state(free)], 300)
    assert history.lowest(299, 300) == {}, "the first look was later"
    assert history.lowest(350, 300) == {KEY: 5}
    assert history.lowest(501, 300) == {KEY: 8}, "5 were free until the look at 200 s"
    assert history.lowest(499, 300) == {KEY: 5}
    assert len(history.after(1000, [state(9)], 300).looks) == 2, "the latest of the old ones tells how the time began"
    elsewhere = history.after(400, [KeptState((EIGHTH, "host-9"), "esx-09", 1, 3)], 300)
    assert elsewhere.lowest(650, 300) == {KEY: 0}, "a place that was not told of at a look has none"


def test_a_checkpoint_of_its_own_or_a_hook_loses_less_and_a_priority_decides_before() -> None:
    snapshot = world(("1a", WHOLE), ("1b", WHOLE), ("2a", WHOLE), ("2b", WHOLE))
    ran = {"ml-01": 5.0, "ml-02": 61.0, "ml-03": 90.0, "ml-04": 1.0}
    of = policy(
        QueuedVm("ml-01"),
        QueuedVm("ml-02", checkpoint=Checkpoint(every_s=1800)),
        QueuedVm("ml-03", priority=1, checkpoint=Checkpoint(60, GuestCommand("/bin/save"))),
        QueuedVm("ml-04", priority=2),
    )
    way = gives(of, snapshot, ran)
    assert [(vm.name, vm.lost_s) for vm in way.vms] == [("ml-02", 60.0)]
    way_for_more = gives(replace(of, spare=SpareRule((KeptSlots(EIGHTH, 18),))), snapshot, ran)
    assert [(vm.name, vm.lost_s) for vm in way_for_more.vms] == [("ml-02", 60.0), ("ml-01", 300.0), ("ml-03", 0.0)]


def test_work_is_weighed_by_what_it_frees_and_nobody_stops_in_vain() -> None:
    """Four are missing. A whole GPU frees six and loses 30 minutes. Each of two halves loses 20, and only both together
    free a GPU for other sizes: one of them alone frees nothing."""
    snapshot = world(("1a", WHOLE), ("1b", WHOLE), ("2a", HALF), ("2a", HALF), ("2b", WHOLE))
    ran = {"ml-01": 500.0, "ml-02": 500.0, "ml-03": 20.0, "ml-04": 20.0, "ml-05": 30.0}
    way = gives(policy(), snapshot, ran)
    assert (names(way), way.still_missing) == (["ml-05"], ())


def test_what_nobody_can_give_is_told() -> None:
    snapshot = world(("1a", EIGHTH), ("1b", WHOLE), hosts=1)
    of = policy(QueuedVm("ml-01"), rule=SpareRule((KeptSlots(EIGHTH, 8),)))
    mine = [own_vm for own_vm in taken_by_night(of, snapshot) if own_vm.original.name == "ml-01"]
    assert of.spare is not None
    way = choose_ml_stops(of.spare, mine, snapshot, catalog(), TAKEN_AT)
    assert names(way) == ["ml-01"]
    assert [str(state) for state in way.still_missing] == ["gpu: 6 of nvidia_a40-8q free, 8 are kept for desktops"]


def test_enough_is_free_after_they_gave_way_or_nothing_more_could() -> None:
    """150 drawn clusters: what is still missing is missing although everything else of the policy stopped; and without
    any one of those that gave way more would be missing."""
    gave = short = 0
    for seed in range(150):
        rng = Random(seed)
        places = [(f"{at}{side}", rng.choice([EIGHTH, HALF, WHOLE])) for at in (1, 2, 3) for side in "ab"]
        running = [
            placement
            for place, profile in places
            for placement in [(place, profile)] * rng.randint(0, {EIGHTH: 6, HALF: 2, WHOLE: 1}[profile])
        ]
        snapshot = world(*running, hosts=3)
        rule = SpareRule((KeptSlots(EIGHTH, rng.randint(1, 30)),))
        ran = {vm.name: rng.uniform(0, 300) for vm in snapshot.vms.values() if rng.random() < 0.9}
        of = policy(*(QueuedVm(vm.name, priority=rng.randint(0, 1)) for vm in snapshot.vms.values()), rule=rule)
        mine = [own_vm for own_vm in taken_by_night(of, snapshot, ran) if rng.random() < 0.7]
        way = choose_ml_stops(rule, mine, snapshot, catalog(), TAKEN_AT)

        def missing(stopped: Sequence[TakenVm], at: Inventory = snapshot, keep: int = rule.keep_free[0].count) -> int:
            for stopped_vm in stopped:
                at = project(ShutDownGuest(stopped_vm.original.vm), at)
            return max(0, keep - FreeSlots(at, catalog(), claims=False).in_cluster_of(at.hosts["host-1"], EIGHTH))

        stopped = [vm.taken_vm for vm in way.vms]
        missing_slots = missing(stopped)
        assert missing_slots == sum(state.missing for state in way.still_missing)
        if missing_slots:
            assert missing_slots == missing(mine), seed
        for given_up_vm in stopped:
            assert missing([other_vm for other_vm in stopped if other_vm is not given_up_vm]) > missing_slots, (
                seed,
                given_up_vm.original.name,
            )
        gave, short = gave + bool(stopped), short + bool(missing_slots)
    assert gave > 50 and short > 5, "both were looked at"


def suspended_desktop(snapshot: Inventory, number: int, at: str) -> tuple[Inventory, TakenVm]:
    desktop = vm(number, f"desk-{number}", at, f"vgpu {EIGHTH}", power=SUSPENDED)
    original = Original("2026-03-01", Role.DESKTOP, desktop.ref, desktop.instance_uuid, desktop.name, desktop.host)
    return snapshot.with_vm(desktop), TakenVm(original, desktop, Whereabouts.AWAY, "suspended")


def test_a_desktop_finds_its_way_back_with_the_least_loss() -> None:
    snapshot, desktop = suspended_desktop(world(("1a", WHOLE), ("1b", WHOLE), ("2a", WHOLE)), 20, "1")
    of = policy(QueuedVm("ml-*"))
    running = taken_by_night(of, snapshot, {"ml-01": 50, "ml-02": 10, "ml-03": 1})
    assert desktop.vm is not None
    stops = ml_stops_for(desktop.vm, running, snapshot, catalog(), TAKEN_AT)
    assert stops is not None and [stop.original.name for stop in stops] == ["ml-02"], "ml-03 is on another host"
    snapshot, elsewhere = suspended_desktop(snapshot, 21, "2")
    back = return_cheapest_desktops([([desktop, elsewhere], 1)], running, snapshot, catalog(), TAKEN_AT)
    assert (back.desktops, back.stops) == ((elsewhere,), ()), "a GPU of host-2 is free"
    cheapest = return_cheapest_desktops([([desktop], 3), ([elsewhere], 2)], running, snapshot, catalog(), TAKEN_AT)
    assert {desktop_back.original.name for desktop_back in cheapest.desktops} == {"desk-20", "desk-21"}
    assert [stop.original.name for stop in cheapest.stops] == ["ml-02"]


def of_cluster(snapshot: Inventory, *numbers: int) -> Inventory:
    """The same where these ML VMs are the VMs of cluster `ml`."""
    for number in numbers:
        marker = ClusterMarker("ml", number, len(numbers), "0a1b2c3d", "0" * 12, 1, RdmaKind.NONE)
        guest_vm = snapshot.vms[f"vm-{number}"]
        snapshot = snapshot.with_vm(replace(guest_vm, extra_config={MARKER_KEY: marker.text}))
    return snapshot


def test_a_cluster_gives_way_whole_and_counts_all_that_it_loses() -> None:
    """`ml-01` loses the least by itself; with `ml-03`, on another host, it loses more than `ml-02`."""
    ran: dict[str, float] = {"ml-01": 10, "ml-02": 30, "ml-03": 90}
    plain = world(("1a", WHOLE), ("1b", WHOLE), ("2a", WHOLE), ("2b", EIGHTH), ("2b", EIGHTH), ("2b", EIGHTH))
    of = policy(QueuedVm(vms=("ml-01", "ml-02", "ml-03")))
    snapshot = of_cluster(plain, 1, 3)
    mine = [own_vm for own_vm in taken_by_night(of, snapshot, ran) if own_vm.original.name < "ml-04"]
    assert names(choose_ml_stops(RULE, mine, snapshot, catalog(), TAKEN_AT)) == ["ml-02"]
    alone = [own_vm for own_vm in mine if own_vm.original.name != "ml-02"]
    assert set(names(choose_ml_stops(RULE, alone, snapshot, catalog(), TAKEN_AT))) == {"ml-01", "ml-03"}
    snapshot, desktop = suspended_desktop(snapshot, 20, "1")
    assert desktop.vm is not None
    for running, stopped in ((mine, ["ml-02"]), (alone, ["ml-01", "ml-03"])):
        stops = ml_stops_for(desktop.vm, running, snapshot, catalog(), TAKEN_AT)
        assert stops is not None and [stop.original.name for stop in stops] == stopped


def test_a_desktop_that_no_stop_helps_stays_away() -> None:
    snapshot, desktop = suspended_desktop(world(("1a", WHOLE), ("1b", WHOLE)), 20, "1")
    assert desktop.vm is not None
    assert ml_stops_for(desktop.vm, (), snapshot, catalog(), TAKEN_AT) is None
    assert return_cheapest_desktops([([desktop], 1)], (), snapshot, catalog(), TAKEN_AT).desktops == ()


def test_the_example_of_the_page() -> None:
    """Two are missing. ml-01 frees one and loses 10 minutes, ml-02 frees six and loses 12."""
    snapshot = world(("1a", EIGHTH), ("1b", WHOLE), ("2a", WHOLE), ("2b", WHOLE))
    of = policy(QueuedVm("ml-*"), rule=SpareRule((KeptSlots(EIGHTH, 7),)))
    assert names(gives(of, snapshot, {"ml-01": 10, "ml-02": 12, "ml-03": 300, "ml-04": 300})) == ["ml-02"]


def test_nothing_here_changes_its_arguments() -> None:
    snapshot = world(("1a", WHOLE), ("1b", WHOLE))
    frozen = replace(snapshot, vms=MappingProxyType(dict(snapshot.vms)))
    assert isinstance(TAKEN_AT, datetime)
    assert names(gives(policy(rule=SpareRule((KeptSlots(EIGHTH, 20),))), frozen, {})) == ["ml-01", "ml-02"]
    assert frozen.vms == snapshot.vms
