"""How many more fit: chosen places, ranges and limits, and properties of generated fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import gpu_states
from gpuops.errors import HostNotFound, ProfileUnknown, UsageError
from gpuops.model.devices.gpu import Passthrough, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.capacity.capacity_request import STANDALONE, capacity
from gpuops.plan.capacity.fleet_room import Device, FleetPart, Level
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import Placement, Wanted, demands_of
from tests.plan.snapshots import FIRST, MEMORY_MIB, SECOND, catalog, gpu, host, inventory, lab, on_gpu, vm, whole
from tests.plan.test_properties import NAMES, fleets

A40 = "nvidia_a40-8q"
ON = PowerState.ON


def everywhere(place: FleetPart) -> Iterator[FleetPart]:
    yield place
    for part in place.parts:
        yield from everywhere(part)


def part_named(whole: FleetPart, name: str) -> FleetPart:
    return next(place for place in everywhere(whole) if place.name == name)


def change_gpus(world: Inventory, name: str, change: Callable[[Host], Host]) -> Inventory:
    return world.with_hosts([change(world.find_host(name))])


def one_a40(*vms: Vm, **fields: Any) -> Inventory:
    """One host with an A40 on each of its two nodes, and these VMs, all on the first GPU."""
    esx = host("esx-01", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1))
    esx = on_gpu(replace(esx, **fields), FIRST, *(vm.ref for vm in vms if vm.power is ON))
    return inventory([esx], vms)


def desk(number: int, **fields: Any) -> Vm:
    return vm(number, f"desk-{number}", "1", f"vgpu {A40}", power=ON, **fields)


class TestPlaces:
    def test_a_host_is_its_nodes_and_a_cluster_its_hosts(self) -> None:
        now = capacity(lab(), catalog(), profile="a40-8q").now
        assert (now.level, now.hosts, now.gpus) == (Level.ALL, 2, 4)
        assert part_named(now, "gpu").fits[A40].slots == Slots(21, 21)
        esx_02 = part_named(now, "esx-02")
        assert [(part.name, part.fits[A40].slots.at_least) for part in esx_02.parts] == [
            ("NUMA node 0", 3),
            ("NUMA node 1", 6),
        ]

    def test_each_profile_is_answered_for_alone(self) -> None:
        fits = part_named(capacity(lab(), catalog()).now, "esx-02").fits
        assert (fits[A40].slots, fits["nvidia_a40-48q"].slots.at_least) == (Slots(9, 9), 1)

    def test_scope(self) -> None:
        of_host = capacity(lab(), catalog(), Scope(host="esx-05")).now
        assert [place.name for place in everywhere(of_host)] == ["all", "gpu", "esx-05", "NUMA node 0", "NUMA node 1"]
        assert capacity(lab(), catalog(), Scope(cluster="gpu")).now.hosts == 5
        assert capacity(lab(), catalog(), Scope(host="esx-0[25]")).now.hosts == 2
        tagged = change_gpus(lab(), "esx-05", lambda host: replace(host, tags=("zone:a", "zone:b")))
        assert capacity(tagged, catalog(), Scope(tag=("zone:a",))).now.hosts == 1

    def test_hosts_of_no_cluster_come_last(self) -> None:
        world = change_gpus(lab(), "esx-01", lambda host: replace(host, cluster=None))
        assert [cluster.name for cluster in capacity(world, catalog()).now.parts] == ["gpu", STANDALONE]

    def test_names_that_mean_nothing_here(self) -> None:
        with pytest.raises(HostNotFound):
            capacity(lab(), catalog(), Scope(host="esx-99"))
        with pytest.raises(ProfileUnknown, match="near: nvidia_a40-8q"):
            capacity(lab(), catalog(), profile="a41-8q")
        with pytest.raises(UsageError, match=r"no cluster .gqu. in this vCenter; did you mean gpu\?"):
            capacity(lab(), catalog(), Scope(cluster="gqu"))

    def test_a_host_of_no_gpu_answers_for_nothing(self) -> None:
        now = capacity(lab(), catalog(), Scope(host="esx-03")).now
        assert (now.gpus, now.hosts, now.fits, now.largest) == (0, 0, {}, None)


class TestBars:
    @pytest.mark.parametrize(
        ("fields", "note"),
        [
            ({"connected": False}, "is not connected"),
            ({"in_maintenance": True}, "is in maintenance mode"),
        ],
    )
    def test_a_host_that_starts_nothing_has_no_room(self, fields: dict[str, bool], note: str) -> None:
        place = part_named(capacity(one_a40(**fields), catalog()).now, "esx-01")
        assert (place.fits[A40].slots, place.notes, place.largest) == (Slots(0, 0, note), (note,), None)

    def test_a_host_without_memory_to_reserve_has_no_room(self) -> None:
        hog = vm(9, "hog", "1", power=ON, memory_reservation_mib=2 * MEMORY_MIB)
        place = part_named(capacity(one_a40(hog), catalog()).now, "esx-01")
        assert place.fits[A40].slots == Slots(0, 0, "has no memory left to reserve")

    def test_a_twin_of_such_a_host_has_its_own_room(self) -> None:
        twins = [replace(host("esx-01", gpu(FIRST, "a40", 0)), in_maintenance=resting) for resting in (True, False)]
        of_twins = capacity(inventory([twins[0], replace(twins[1], ref="host-2", name="esx-02")], []), catalog()).now
        assert [part_named(of_twins, name).fits[A40].slots.at_least for name in ("esx-01", "esx-02")] == [0, 6]

    @pytest.mark.parametrize("field", ["connected", "in_maintenance", "profiles"])
    def test_what_cannot_be_read_makes_a_range(self, field: str) -> None:
        world = one_a40(**{field: None})
        second_host = host("esx-02", gpu(FIRST, "a40", 0))  # whose offers stand in where esx-01 does not tell its own
        place = part_named(capacity(world.with_hosts([second_host]), catalog()).now, "esx-01")
        slots = place.fits[A40].slots
        assert (slots.at_least, slots.at_most) == (0, 12)
        assert slots.because.endswith("cannot be read")


class TestRanges:
    def test_mig_starts_that_vcenter_does_not_tell(self) -> None:
        fits = part_named(capacity(lab(), catalog()).now, "esx-01").fits
        assert (fits["grid_a100-1-5c"].slots.at_least, fits["grid_a100-1-5c"].slots.at_most) == (10, 11)

    def test_a_vgpu_that_may_be_on_either_gpu(self) -> None:
        nowhere = change_gpus(one_a40(desk(1)), "esx-01", lambda host: on_gpu(host, FIRST))
        slots = part_named(capacity(nowhere, catalog()).now, "esx-01").fits["nvidia_a40-48q"].slots
        assert (slots.at_least, slots.at_most) == (0, 2)

    def test_a_gpu_that_does_not_tell_its_vms_is_unknown_not_free(self) -> None:
        def silent(host: Host) -> Host:
            return replace(host, gpus=(replace(host.gpus[0], vms=None), host.gpus[1]))

        place = part_named(capacity(change_gpus(one_a40(), "esx-01", silent), catalog()).now, "esx-01")
        assert (place.fits[A40].slots.at_least, place.fits[A40].slots.at_most) == (6, None)

    def test_three_vgpus_of_one_vm_on_two_gpus(self) -> None:
        """Two are on one GPU and one on the other; which, vCenter does not tell."""
        three = vm(1, "three", "1", *[f"vgpu {A40}"] * 3, power=ON)
        world = change_gpus(one_a40(three), "esx-01", lambda host: on_gpu(host, SECOND, "vm-1"))
        slots = part_named(capacity(world, catalog()).now, "esx-01").fits[A40].slots
        assert (slots.at_least, slots.at_most) == (8, 10)

    def test_a_mig_gpu_that_cannot_be_as_full_as_it_may_be(self) -> None:
        """Three instances of half a GPU on two GPUs: each has one or two of them."""
        three = vm(1, "three", "1", *["vgpu grid_a100-3-20c"] * 3, power=ON)
        gpus = [gpu(address, "a100", node, VgpuMode.MULTI_INSTANCE) for node, address in enumerate((FIRST, SECOND))]
        busy = vm(2, "busy", "1", "vgpu grid_a100-4-20c", power=ON)
        esx = on_gpu(on_gpu(host("esx-01", *gpus), FIRST, "vm-1", "vm-2"), SECOND, "vm-1")
        slots = (
            part_named(capacity(inventory([esx], [three, busy]), catalog()).now, "esx-01").fits["grid_a100-1-5c"].slots
        )
        assert (slots.at_least, slots.at_most) == (0, 4)


class TestInOneVm:
    def test_what_the_driver_and_the_release_allow(self) -> None:
        fits = part_named(capacity(one_a40(), catalog()).now, "esx-01").fits
        assert fits["nvidia_a40-8a"].on_one_host.at_most == 1  # A types are alone in their VM
        assert (fits[A40].beside_one_node, fits[A40].on_one_host) == (Slots(6, 6), Slots(12, 12))
        assert fits["nvidia_a40-1q"].on_one_host.at_most == 16
        old = part_named(capacity(one_a40(version="7.0.3"), catalog()).now, "esx-01").fits
        assert (old[A40].on_one_host.at_most, old["nvidia_a40-48q"].on_one_host.at_most) == (1, 2)

    def test_an_unknown_release_makes_a_range(self) -> None:
        fit = part_named(capacity(one_a40(version=None), catalog()).now, "esx-01").fits[A40]
        assert (fit.on_one_host.at_least, fit.on_one_host.at_most) == (1, 12)

    def test_the_largest_is_the_largest_frame_buffer_as_often_as_a_node_has_it(self) -> None:
        largest = capacity(one_a40(), catalog()).now.largest
        assert largest is not None
        assert (largest.framebuffer_mib, largest.count) == (48 * 1024, Slots(1, 1))
        assert largest.where == "esx-01 NUMA node 0"
        assert largest.beside.cores == 16


class TestBeside:
    def test_memory_of_vms_bound_to_no_node_may_be_on_any(self) -> None:
        room = part_named(capacity(one_a40(desk(1)), catalog()).now, "NUMA node 1").beside
        assert room is not None
        assert (room.memory_at_least_mib, room.memory_at_most_mib) == (MEMORY_MIB - 65536, MEMORY_MIB)

    def test_memory_of_vms_bound_to_a_node_is_on_it(self) -> None:
        world = one_a40(desk(1, extra_config={"numa.nodeAffinity": "0"}))
        first, second = (place.beside for place in everywhere(capacity(world, catalog()).now) if place.beside)
        assert (first.memory_at_least_mib, first.memory_at_most_mib) == (MEMORY_MIB - 65536,) * 2
        assert (second.memory_at_least_mib, second.memory_at_most_mib) == (MEMORY_MIB,) * 2

    def test_an_unreadable_reservation_may_be_all_of_the_vm(self) -> None:
        world = one_a40(desk(1, memory_reservation_mib=None))
        room = part_named(capacity(world, catalog()).now, "NUMA node 0").beside
        assert room is not None
        assert (room.memory_at_least_mib, room.memory_at_most_mib) == (MEMORY_MIB - 65536, MEMORY_MIB)

    def test_no_node_has_more_than_its_host_can_reserve(self) -> None:
        room = part_named(capacity(one_a40(memory_mib=4096), catalog()).now, "NUMA node 0").beside
        assert room is not None
        assert (room.memory_at_least_mib, room.memory_at_most_mib) == (4096, 4096)

    def test_a_node_without_memory_feeds_no_vm(self) -> None:
        world = one_a40(
            vm(9, "hog", "1", power=ON, memory_reservation_mib=MEMORY_MIB, extra_config={"numa.nodeAffinity": "0"})
        )
        place = part_named(capacity(world, catalog()).now, "esx-01")
        assert place.parts[0].fits[A40].slots == Slots(6, 6)
        assert place.parts[0].fits[A40].beside_one_node.at_most == 0
        assert place.largest is not None
        assert place.largest.where == "esx-01 NUMA node 1"

    def test_gpus_whose_node_is_not_known(self) -> None:
        world = inventory([host("esx-01", gpu(FIRST, "a40", None))], [])
        place = part_named(capacity(world, catalog()).now, "NUMA node unknown")
        assert (place.fits[A40].slots, place.fits[A40].beside_one_node.at_least) == (Slots(6, 6), 0)


class TestWhole:
    L40S = Device("NVIDIA L40S", 0x10DE, 0x26B9, "ml")

    def test_free_and_held(self) -> None:
        devices = part_named(capacity(lab(), catalog()).now, "esx-04").devices
        assert devices[self.L40S] == Slots(1, 1, "held by ml-08")
        assert sum(slots.at_least for slots in devices.values()) == 2  # and the T4

    def test_a_reboot_that_is_pending(self) -> None:
        waiting = replace(whole(FIRST, "l40s", 0, "ml"), passthrough=Passthrough(True, True, False, "ml"))
        whole_fleet = capacity(inventory([host("esx-01", waiting)], []), catalog()).now
        assert whole_fleet.devices[self.L40S] == Slots(0, 0, "its passthrough waits for a reboot of the host")

    def test_whether_it_is_held_is_unknown_when_its_vm_cannot_be_read(self) -> None:
        esx = host("esx-01", whole(FIRST, "l40s", 0, "ml"))
        lost = replace(vm(1, "lost", "1", f"directpath {FIRST}"), power=None)
        whole_fleet = capacity(inventory([esx], [lost]), catalog()).now
        assert whole_fleet.devices[self.L40S] == Slots(0, 1, "whether lost runs cannot be read")

    def test_it_needs_no_vgpu_profiles_to_be_read(self) -> None:
        esx = replace(host("esx-01", whole(FIRST, "l40s", 0, "ml")), profiles=None)
        assert capacity(inventory([esx], []), catalog()).now.devices[self.L40S] == Slots(1, 1)


class TestAfter:
    def test_suspended_desktops_free_slots_sizes_and_memory(self) -> None:
        world = one_a40(desk(1), desk(2))
        answer = capacity(world, catalog(), None, world.vms_on(world.find_host("esx-01")))
        assert answer.after is not None
        fits = [part_named(place, "esx-01").fits for place in (answer.now, answer.after)]
        assert [fit[A40].slots.at_least for fit in fits] == [10, 12]
        assert [fit["nvidia_a40-48q"].slots.at_least for fit in fits] == [1, 2]
        node = part_named(answer.after, "NUMA node 0").beside
        assert node is not None
        assert (answer.desktops, node.memory_at_least_mib) == (2, MEMORY_MIB)

    def test_desktops_out_of_scope_do_not_count(self) -> None:
        world = lab()
        answer = capacity(world, catalog(), Scope(host="esx-05"), [world.find_vm("desk-1")])
        assert (answer.desktops, answer.after) == (0, answer.now)

    def test_without_a_policy_there_is_no_after(self) -> None:
        assert capacity(lab(), catalog()).after is None

    def test_the_mode_that_running_vgpus_show_is_kept(self) -> None:
        """Before 8.0 Update 3 an empty A100 may be in MIG mode; one that ran time-sliced vGPUs is not."""
        ref = vm(1, "desk-1", "1", "vgpu grid_a100-4c", power=ON)
        world = inventory([on_gpu(host("esx-01", gpu(FIRST, "a100", 0, VgpuMode.SAME_SIZE)), FIRST, "vm-1")], [ref])
        esx = world.find_host("esx-01")
        world = world.with_hosts([replace(esx, gpus=(replace(esx.gpus[0], vgpu_mode=None),))])
        answer = capacity(world, catalog(), None, [ref])
        assert answer.after is not None
        assert answer.after.fits["grid_a100-4c"].slots == Slots(10, 10)

    def test_a_vm_that_moves_away_right_now_is_still_seen_on_its_gpu(self) -> None:
        moving = replace(desk(2), host="host-2")
        world = inventory(
            [on_gpu(host("esx-01", gpu(FIRST, "a40", 0)), FIRST, "vm-1", "vm-2"), host("esx-02", gpu(FIRST, "a40", 0))],
            [desk(1), moving],
        )
        answer = capacity(world, catalog(), Scope(host="esx-01"), [world.vm("vm-1")])
        assert answer.after is not None
        assert answer.after.fits[A40].slots.at_most is not None


MORE_THAN_TWO_GPUS_HAVE = 50
FAST = settings(max_examples=80)


def one_by_one(profile: str, esx: Host, world: Inventory) -> int:
    """How many small VMs with a vGPU of the profile find a place, each beside the ones before; a few too many will do.

    On a MIG GPU that may be fuller than it can be (a VM counted on each GPU it may be on) placement doubts, and does
    not refuse.
    """
    placed = 0
    while placed < MORE_THAN_TWO_GPUS_HAVE:
        small = vm(1000 + placed, f"new-{placed}", esx.ref.removeprefix("host-"), f"vgpu {profile}")
        small = replace(small, vcpus=1, memory_mib=1, memory_reservation_mib=1)
        question = Wanted(small, demands_of(small.devices or (), {}), (esx.ref,))
        if not isinstance(place(question, world, catalog()), Placement):
            return placed
        world = project(PowerOnVm(small.ref, esx.ref), world.with_vm(small), catalog())
        placed += 1
    return placed


@FAST
@given(world=fleets(), profile=st.sampled_from(NAMES))
def test_capacity_is_what_placing_one_by_one_allows(world: Inventory, profile: str) -> None:
    whole_fleet = capacity(world, catalog()).now
    for esx in world.hosts.values():
        fit = part_named(whole_fleet, esx.name).fits.get(profile)
        really = one_by_one(profile, esx, world)
        if fit is None:
            assert really == 0
            continue
        assert fit.slots.at_least <= really
        if all(gpu.vgpu_mode is VgpuMode.SAME_SIZE for gpu in esx.gpus):
            assert fit.slots.at_most is not None
            assert really <= fit.slots.at_most
            # vCenter lists a VM on its GPUs, not how many of its vGPUs are on which: then it is a range
            tenants = [tenant for state in gpu_states(esx, world, catalog()) for tenant in state.tenants]
            assert fit.slots.exact or not all(tenant.certain for tenant in tenants)


@pytest.mark.long
@FAST
@given(world=fleets(), draws=st.data())
def test_suspending_never_takes_room_away(world: Inventory, draws: st.DataObject) -> None:
    if draws.draw(st.booleans(), "hosts tell the mode"):
        blind = [
            replace(esx, gpus=tuple(replace(gpu, vgpu_mode=None) for gpu in esx.gpus)) for esx in world.hosts.values()
        ]
        world = world.with_hosts(blind)
    running = [vm for vm in world.vms.values() if vm.power is ON]
    desktops = draws.draw(st.lists(st.sampled_from(running), unique_by=lambda vm: vm.ref)) if running else []
    answer = capacity(world, catalog(), None, desktops)
    assert answer.after is not None
    for now, after in zip(everywhere(answer.now), everywhere(answer.after), strict=True):
        assert now.name == after.name
        for profile, fit in now.fits.items():
            later = after.fits[profile]
            for before, then in (
                (fit.slots, later.slots),
                (fit.beside_one_node, later.beside_one_node),
                (fit.on_one_host, later.on_one_host),
            ):
                assert then.at_least >= before.at_least
                assert then.at_most is None or then.at_most >= before.at_least


@pytest.mark.long
@FAST
@given(world=fleets())
def test_parts_make_up_the_whole(world: Inventory) -> None:
    for area in everywhere(capacity(world, catalog()).now):
        for profile, fit in area.fits.items():
            assert fit.beside_one_node.at_least <= fit.on_one_host.at_least <= fit.slots.at_least
            if area.parts:
                parts = [part.fits[profile] for part in area.parts if profile in part.fits]
                assert fit.slots.at_least == sum(part.slots.at_least for part in parts)


def test_alike_nodes_have_the_figures_of_their_own_gpus() -> None:
    """What is worked out once is kept for nodes that are alike, and for no other."""
    hosts = [host(f"esx-{number:02}", gpu(FIRST, board, 0)) for number, board in ((1, "a40"), (2, "l40s"), (3, "a40"))]
    whole_fleet = capacity(inventory([on_gpu(hosts[0], FIRST, "vm-1"), *hosts[1:]], [desk(1)]), catalog()).now
    fits = [part_named(whole_fleet, name).fits.get(A40) for name in ("esx-01", "esx-02", "esx-03")]
    assert [None if fit is None else fit.slots.at_least for fit in fits] == [5, None, 6]
