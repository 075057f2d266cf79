"""Each change on a small snapshot: what the fleet is then, who starts anew, who finds no place, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpuops.errors import GpuopsError, HostNotFound, ProfileUnknown, UsageError
from gpuops.extras.sizing.what_if.changed_fleet import ChangedFleet, changed_fleet
from gpuops.extras.sizing.what_if.question import WhatIf, WhatIfAnswer
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.devices.mig import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.fleet_change import (
    AddHosts,
    AddVms,
    ApplyLayout,
    ChangeGpuMode,
    ChangeProfile,
    FleetChange,
    GpuServing,
    LoseGpu,
    LoseHost,
)
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from tests.plan import snapshots
from tests.plan.snapshots import FIRST, FOURTH, SECOND

MIXED, MIG = GpuServing.MIXED_SIZE, GpuServing.MIG


def change_fleet(*changes: FleetChange, world: Inventory | None = None, seed: int = 1) -> ChangedFleet:
    return changed_fleet(changes, world or snapshots.lab(), snapshots.catalog(), None, seed)


def running(fleet: ChangedFleet, host: str) -> list[str]:
    esx = fleet.inventory.find_host(host)
    return sorted(vm.name for vm in fleet.inventory.vms_on(esx) if vm.power is PowerState.ON)


class TestHosts:
    def test_added_hosts_are_made_as_one_that_is_there(self) -> None:
        fleet = change_fleet(AddHosts(2, "L40S", 8))
        first, second = (fleet.inventory.find_host(name) for name in ("new-1-1", "new-1-2"))
        model = fleet.inventory.find_host("esx-04")
        assert fleet.done == ("2 more hosts with 8 x NVIDIA L40S, made as esx-04",), "it has the most of that model"
        assert (first.memory_mib, first.cpu_cores, first.cluster) == (model.memory_mib, model.cpu_cores, model.cluster)
        assert [gpu.numa_node for gpu in first.gpus] == [0, 1] * 4
        assert len({gpu.address for gpu in second.gpus}) == 8
        assert first.offers("nvidia_l40s-8q") and not first.offers("nvidia_a40-8q")
        assert fleet.inventory.vms == snapshots.lab().vms

    def test_in_mig_mode_they_offer_mig_backed_profiles_alone(self) -> None:
        new = change_fleet(AddHosts(1, "a100", 1, None, MIG)).inventory.find_host("new-1-1")
        assert new.offers("grid_a100-3-20c") and not new.offers("grid_a100-20c")

    def test_made_as_a_host_without_a_model_they_have_its_gpus(self) -> None:
        new = change_fleet(AddHosts(1, like="esx-02")).inventory.find_host("new-1-1")
        assert [gpu.name for gpu in new.gpus] == ["NVIDIA A40", "NVIDIA A40"]
        assert [gpu.vms for gpu in new.gpus] == [(), ()]

    def test_of_a_lost_host_the_vms_start_on_others_of_its_cluster(self) -> None:
        fleet = change_fleet(LoseHost("esx-02"))
        assert [(vm.name, host.name) for vm, host in fleet.restarts] == [
            (f"desk-{number}", "esx-05") for number in (1, 2, 3)
        ]
        assert running(fleet, "esx-05") == ["desk-1", "desk-2", "desk-3"]
        assert fleet.stranded == ()
        assert fleet.inventory.find_host("esx-02").connected is False
        assert fleet.inventory.find_vm("desk-4").power is PowerState.SUSPENDED, "it stays where it is"

    def test_who_finds_no_place_is_named_with_reasons(self) -> None:
        fleet = change_fleet(LoseHost("esx-01"), LoseHost("esx-04"))
        assert [stranded_vm.vm.name for stranded_vm in fleet.stranded] == ["ml-03", "ml-08"]
        assert any("does not offer grid_a100-3-20c" in reason for reason in fleet.stranded[0].reasons)
        assert any("has a passthrough device of its own host" in reason for reason in fleet.stranded[1].reasons)

    def test_a_host_that_is_added_takes_them(self) -> None:
        fleet = change_fleet(LoseHost("esx-01"), AddHosts(1, like="esx-01"))
        assert [(vm.name, host.name) for vm, host in fleet.restarts] == [("ml-03", "new-2-1")]
        assert fleet.stranded == ()


class TestGpus:
    def test_who_ran_on_a_lost_gpu_starts_on_its_own_host_first(self) -> None:
        fleet = change_fleet(LoseGpu("esx-02", PciAddress.parse(FIRST)))
        assert {host.name for _, host in fleet.restarts} == {"esx-02"}
        [remaining_gpu] = fleet.inventory.find_host("esx-02").gpus
        assert (str(remaining_gpu.address), len(remaining_gpu.vms or ())) == (SECOND, 3)

    def test_a_gpu_in_another_mode_is_empty_first_and_fills_again(self) -> None:
        fleet = change_fleet(ChangeGpuMode(MIXED, "esx-02"))
        gpus = fleet.inventory.find_host("esx-02").gpus
        assert [gpu.vgpu_mode for gpu in gpus] == [VgpuMode.MIXED_SIZE] * 2
        assert fleet.done == ("2 GPUs of esx-02 in mixed-size mode",)
        assert running(fleet, "esx-02") == ["desk-1", "desk-2", "desk-3"]

    def test_what_a_mode_does_not_have_is_left_and_told(self) -> None:
        fleet = change_fleet(ChangeGpuMode(MIXED, "esx-04"))
        modes = [gpu.vgpu_mode for gpu in fleet.inventory.find_host("esx-04").gpus]
        assert modes == [VgpuMode.MIXED_SIZE, None, None, None]
        assert len(fleet.notes) == 3 and all("serves no vGPUs" in note for note in fleet.notes)

    def test_before_vsphere_8_update_3_a_note_says_so(self) -> None:
        old = replace(snapshots.lab(), api_version="8.0.2.0")
        fleet = change_fleet(ChangeGpuMode(MIXED, "esx-05"), world=old)
        assert fleet.notes == ("mixed-size mode needs vSphere 8.0.3.0, this is 8.0.2.0",)

    def test_out_of_mig_mode_time_sliced_profiles_are_offered(self) -> None:
        fleet = change_fleet(ChangeGpuMode(GpuServing.SAME_SIZE, "esx-01"))
        host = fleet.inventory.find_host("esx-01")
        assert host.offers("grid_a100-20c") and not host.offers("grid_a100-3-20c")
        assert [stranded_vm.vm.name for stranded_vm in fleet.stranded] == ["ml-03"]


class TestVms:
    def test_another_profile_starts_running_vms_anew(self) -> None:
        fleet = change_fleet(ChangeProfile("desk-*", "a40-16q"))
        assert fleet.done == ("4 VMs of desk-* have nvidia_a40-16q",), "desk-5 has no vGPU"
        assert {vm.name: vm.profiles for vm in fleet.inventory.vms.values() if vm.vgpus} == {
            "ml-03": ("grid_a100-3-20c",),
            **{f"desk-{number}": ("nvidia_a40-16q",) for number in (1, 2, 3, 4)},
        }
        assert fleet.inventory.find_vm("desk-4").power is PowerState.OFF, "suspended it could not change"
        assert len(fleet.restarts) == 3

    def test_more_vms_are_made_as_one_that_runs_and_placed(self) -> None:
        fleet = change_fleet(AddVms(12, "a40-8q"))
        added_vms = [vm for vm in fleet.inventory.vms.values() if "-more-" in vm.name]
        assert (fleet.more_asked, fleet.more_placed, len(added_vms)) == (12, 12, 12)
        assert {(vm.vcpus, vm.memory_mib, vm.profiles, vm.power) for vm in added_vms} == {
            (16, 65536, ("nvidia_a40-8q",), PowerState.ON)
        }
        on_gpus = [ref for host in fleet.inventory.hosts.values() for gpu in host.gpus for ref in gpu.vms or ()]
        assert sorted(on_gpus) == sorted({*on_gpus}), "one GPU each"
        assert {vm.ref for vm in added_vms} <= {*on_gpus}

    def test_of_too_many_as_many_run_as_have_a_place(self) -> None:
        fleet = change_fleet(AddVms(500, "a40-8q"))
        full = change_fleet(AddVms(1, "a40-8q"), world=fleet.inventory)
        assert 0 < fleet.more_placed < 500
        assert full.more_placed == 0

    def test_by_another_seed_they_are_made_as_others(self) -> None:
        def models(seed: int) -> set[str]:
            fleet = change_fleet(AddVms(8, "a40-8q"), seed=seed)
            return {vm.name for vm in fleet.inventory.vms.values() if "-more-" in vm.name}

        assert models(1) == models(1)
        assert models(1) != models(2)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (AddHosts(1, "l40z", 8), UsageError, "no GPU model 'l40z' in the catalogue; did you mean l40, l40s, l40g?"),
        (AddHosts(1, "p40", 8, None, MIXED), UsageError, "Tesla P40 has no mixed-size mode"),
        (AddHosts(1, "a40", 8, None, MIG), UsageError, "NVIDIA A40 has no MIG mode (NVIDIA MIG User Guide)"),
        (AddHosts(1, like="esx-03"), UsageError, "esx-03 has no GPU"),
        (AddHosts(1, like="esx-99"), HostNotFound, "no host 'esx-99' in this vCenter"),
        (LoseHost("esx-99"), HostNotFound, "no host 'esx-99' in this vCenter"),
        (LoseGpu("esx-02", PciAddress.parse(FOURTH)), UsageError, f"esx-02 has no GPU {FOURTH}"),
        (ChangeGpuMode(MIXED, "esx-99"), HostNotFound, "no host 'esx-99' in this vCenter"),
        (ChangeGpuMode(MIXED, "esx-06"), UsageError, "nothing would change: 1 GPU in mixed-size mode already"),
        (ChangeGpuMode(MIG, "esx-02"), UsageError, f"esx-02 {FIRST}: NVIDIA A40 has no MIG mode"),
        (ChangeGpuMode(MIG, "esx-02", "a100"), UsageError, "there is no NVIDIA A100"),
        (ChangeGpuMode(MIXED, "esx-04", None, (PciAddress.parse(SECOND),)), UsageError, "serves no vGPUs"),
        (ChangeProfile("desk-*", "a40-99q"), ProfileUnknown, "no host offers a vGPU profile 'a40-99q'"),
        (ChangeProfile("nobody-*", "a40-8q"), UsageError, "there is no VM with a vGPU named nobody-*"),
        (ChangeProfile("desk-*", "a40-8q"), UsageError, "nothing would change: 4 VMs have nvidia_a40-8q already"),
        (AddVms(1, "office"), UsageError, "'office' is neither a pool nor a profile"),
        (AddVms(1, "l40s-8q"), UsageError, "there is no VM of nvidia_l40s-8q to copy"),
    ],
)
def test_what_is_not_there_or_cannot_be_is_refused(change: FleetChange, kind: type[GpuopsError], message: str) -> None:
    with pytest.raises(kind) as refused:
        change_fleet(change)
    assert refused.value.message.startswith(message) or message in refused.value.message
    assert refused.value.exit_code == 2


A100, A40 = (0x10DE, 0x20F1), (0x10DE, 0x2235)
THREE = (("3g.20gb", 1), ("2g.10gb", 2))


def part(
    *counts: tuple[str, int], gpus: tuple[int, ...] | None = None, model: tuple[int, int] | None = None, on: bool = True
) -> LayoutPart:
    return LayoutPart(gpus, () if model is None else (model,), counts, is_mig_on=on)


def apply_layout(*parts: LayoutPart, form: LayoutForm = LayoutForm.GPU_INSTANCES, **of: Any) -> ChangedFleet:
    change = ApplyLayout(GpuLayout("wanted", form, parts), **of)
    return changed_fleet((change,), snapshots.lab(), snapshots.catalog(), None, 1)


def divided_instances(fleet: ChangedFleet, host: str) -> list[tuple[str, ...] | None]:
    return [gpu.gpu_instances for gpu in fleet.inventory.find_host(host).gpus]


def test_all_gpus_of_the_model_have_it_and_their_vms_start_anew() -> None:
    fleet = apply_layout(part(*THREE, model=A100))
    assert divided_instances(fleet, "esx-01") == [("3g.20gb", "2g.10gb", "2g.10gb")] * 2
    assert fleet.done == ("2 GPUs of esx-01 with the layout wanted: 1 x 3g.20gb, 2 x 2g.10gb",)
    assert [(vm.name, host.name) for vm, host in fleet.restarts] == [("ml-03", "esx-01")], "it has a 3g instance again"
    assert fleet.notes == (), "the layout is not for the other models"


def test_a_vm_whose_instance_is_in_no_layout_finds_no_place() -> None:
    fleet = apply_layout(part(("1g.5gb", 7), model=A100))
    assert [stranded_vm.vm.name for stranded_vm in fleet.stranded] == ["ml-03"]


def test_the_last_part_that_names_a_gpu_holds() -> None:
    fleet = apply_layout(part(*THREE, model=A100), part(("7g.40gb", 1), gpus=(1,), model=A100))
    assert divided_instances(fleet, "esx-01") == [("3g.20gb", "2g.10gb", "2g.10gb"), ("7g.40gb",)]


def test_out_of_mig_mode() -> None:
    fleet = apply_layout(part(model=A100, on=False))
    modes = [gpu.vgpu_mode for gpu in fleet.inventory.find_host("esx-01").gpus]
    assert modes == [VgpuMode.SAME_SIZE] * 2
    host = fleet.inventory.find_host("esx-01")
    assert host.offers("grid_a100-20c") and not host.offers("grid_a100-3-20c")


def test_mig_backed_vgpus_are_their_instances() -> None:
    fleet = apply_layout(part(("A100-3-20C", 2), model=A100), form=LayoutForm.VGPUS)
    assert divided_instances(fleet, "esx-01") == [("3g.20gb", "3g.20gb")] * 2


def test_gpus_that_cannot_have_it_are_left_alone_and_named() -> None:
    fleet = apply_layout(part(*THREE))
    assert divided_instances(fleet, "esx-02") == [None, None]
    assert "left as it is: esx-02 0000:3b:00.0: NVIDIA A40 has no MIG mode" in fleet.notes


@pytest.mark.parametrize(
    ("parts", "of", "message"),
    [
        ((part(("4g.20gb", 2), model=A100),), {}, "esx-01 0000:3b:00.0: no place for a 4g.20gb next to 1 x 4g.20gb"),
        ((part(*THREE, model=A40),), {"host": "esx-01"}, "the layout has no part for this NVIDIA A100"),
        ((part(*THREE),), {"host": "esx-02"}, "NVIDIA A40 has no MIG mode"),
        (
            (part(*THREE, gpus=(0,)),),
            {"host": "esx-01", "gpu": (PciAddress.parse(SECOND),)},
            "the layout has no part for this",
        ),
    ],
)
def test_what_cannot_be_is_refused(parts: tuple[LayoutPart, ...], of: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        apply_layout(*parts, **of)
    assert message in refused.value.message


def test_time_sliced_vgpus_divide_no_gpu() -> None:
    with pytest.raises(UsageError, match="its vGPUs are time-sliced"):
        apply_layout(part(("A100-8C", 1), model=A100), form=LayoutForm.VGPUS)


def test_one_gpu_by_its_address() -> None:
    fleet = apply_layout(part(*THREE), host="esx-01", gpu=(PciAddress.parse(FIRST),))
    assert divided_instances(fleet, "esx-01") == [("3g.20gb", "2g.10gb", "2g.10gb"), None]


SIZES = (4, 8, 12, 16, 24, 48)


@some.composite
def fleets(draw: some.DrawFn) -> Inventory:
    """One to three hosts of one to three A40, each in some mode with some VMs of one size."""
    hosts, vms = [], []
    for number in range(1, draw(some.integers(1, 3)) + 1):
        addresses = [snapshots.FIRST, snapshots.SECOND, snapshots.THIRD][: draw(some.integers(1, 3))]
        modes = (VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE)
        gpus = [snapshots.gpu(gpu_address, "a40", 0, draw(some.sampled_from(modes))) for gpu_address in addresses]
        host = snapshots.host(f"esx-{number}", *gpus)
        for index, address in enumerate(addresses):
            size = draw(some.sampled_from(SIZES))
            refs = [f"vm-{number}{index}{slot}" for slot in range(draw(some.integers(0, 2)) if size < 24 else 0)]
            vms += [
                snapshots.vm(int(ref[3:]), f"d{ref[3:]}", str(number), f"vgpu nvidia_a40-{size}q", power=PowerState.ON)
                for ref in refs
            ]
            host = snapshots.on_gpu(host, address, *refs)
        hosts.append(host)
    return snapshots.inventory(hosts, vms)


def alike(size: int, number: int) -> tuple[Workload, ...]:
    return tuple(Workload(f"r{index}", 1, 2048, profile=f"a40-{size}q") for index in range(number))


def answer(question: WhatIf, world: Inventory) -> WhatIfAnswer:
    return question.answer(world, snapshots.catalog())


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(fleets(), some.sampled_from(SIZES), some.integers(1, 2), some.sampled_from(["a40", "l40s"]))
def test_more_hosts_place_no_fewer_requests_that_are_alike(world: Inventory, size: int, count: int, board: str) -> None:
    outcome = answer(WhatIf((AddHosts(count, board, 2, "esx-1"),), alike(size, 24)), world)
    [now], [then] = outcome.now.requests, outcome.then.requests
    assert then.placed >= now.placed
    assert (now.placed + len(now.waiting), then.placed + len(then.waiting)) == (24, 24)
    if board == "l40s":
        assert then.placed == now.placed, "no request asks for its GPUs"


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(fleets(), some.sampled_from(SIZES))
def test_a_host_that_is_lost_and_added_again_changes_nothing_where_it_is_empty(world: Inventory, size: int) -> None:
    empty = snapshots.host("esx-9", snapshots.gpu(snapshots.FIRST, "a40"), snapshots.gpu(snapshots.SECOND, "a40"))
    world = world.with_hosts([empty])
    outcome = answer(WhatIf((LoseHost("esx-9"), AddHosts(1, like="esx-9")), alike(size, 24)), world)
    assert outcome.then.requests[0].placed == outcome.now.requests[0].placed
    figures = [(side.hosts, side.gpus, side.gpu_memory_mib, side.running) for side in (outcome.now, outcome.then)]
    assert figures[0] == figures[1]


@pytest.mark.long
@settings(max_examples=5, deadline=None)
@given(fleets(), some.integers(1, 3))
def test_seeds_repeat(world: Inventory, seeds: int) -> None:
    profiles = sorted({profile for vm in world.vms.values() for profile in vm.profiles})
    added_vms = (AddVms(3, profiles[0]),) if profiles else ()
    question = WhatIf((AddHosts(1, "a40", 1), *added_vms), (), 12, seeds)
    assert answer(question, world) == answer(question, world)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(fleets())
def test_whoever_ran_runs_again_or_is_named(world: Inventory) -> None:
    outcome = answer(WhatIf((LoseHost("esx-1"),), alike(8, 1)), world)
    ran = {vm.ref for vm in world.vms.values() if vm.power is PowerState.ON}
    fleet = outcome.then.fleet
    runs = {vm.ref for vm in fleet.inventory.vms.values() if vm.power is PowerState.ON}
    assert runs | {stranded_vm.vm.ref for stranded_vm in fleet.stranded} == ran
    assert not runs & {stranded_vm.vm.ref for stranded_vm in fleet.stranded}
    dead = fleet.inventory.find_host("esx-1")
    assert not [vm for vm in fleet.inventory.vms_on(dead) if vm.ref in runs]
