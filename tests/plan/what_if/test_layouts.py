"""GPUs that have a named layout: which GPUs it is for, who starts anew, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.fleet import ChangedFleet, changed_fleet
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.devices.gpu_layout import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.fleet_change import ApplyLayout
from tests.plan import snapshots
from tests.plan.snapshots import FIRST, SECOND

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
