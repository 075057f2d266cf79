"""Each change on a small snapshot: what the fleet is then, who starts anew, who finds no place, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.errors import GpuopsError, HostNotFound, ProfileUnknown, UsageError
from gpuops.extras.sizing.what_if.fleet import ChangedFleet, changed_fleet
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.fleet_change import (
    AddHosts,
    AddVms,
    ChangeGpuMode,
    ChangeProfile,
    FleetChange,
    GpuServing,
    LoseGpu,
    LoseHost,
)
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
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
