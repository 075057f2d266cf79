"""FGD's F and the GPUs that no waiting VM can use, on GPUs whose figures are easy to check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.advise.fragmentation import Fragmentation, measure_fragmentation, sum_of_models
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import PowerState, Vm
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, on_gpu, vm

GIB = 1024
SMALL, LARGE = "nvidia_a40-8q", "nvidia_a40-24q"


def running(number: int, profile: str) -> Vm:
    return vm(number, f"ml-{number}", "1", f"vgpu {profile}", power=PowerState.ON)


def off(number: int, profile: str) -> Vm:
    return vm(number, f"off-{number}", "1", f"vgpu {profile}")


def pair(mode: VgpuMode = VgpuMode.SAME_SIZE) -> Host:
    """Two A40, of which the first lists the running VM."""
    return on_gpu(host("esx-1", gpu(FIRST, "a40", 0, mode), gpu(SECOND, "a40", 1, mode)), FIRST, "vm-1")


def fragmentation_of(esx: Host, *vms: Vm) -> Fragmentation:
    [answer] = measure_fragmentation([esx], inventory([esx], vms), catalog())
    return answer


@pytest.mark.parametrize(
    ("waiting", "fragmented_gib", "unusable_gpus"),
    [
        ((), 0, None),  # the only profile fits everywhere
        ((LARGE,), 20, 1),  # half of the VMs cannot use 40 GiB
        ((LARGE, LARGE, LARGE), 30, 1),  # three of four
        ((LARGE, SMALL), 40 / 3, 0),  # a small VM waits too, which both GPUs take
    ],
)
def test_two_gpus_in_same_size_mode(waiting: tuple[str, ...], fragmented_gib: float, unusable_gpus: int | None) -> None:
    vms = [off(number, profile) for number, profile in enumerate(waiting, 2)]
    answer = fragmentation_of(pair(), running(1, SMALL), *vms)
    assert (answer.gpus, answer.free_mib) == (2, 88 * GIB)
    assert answer.fragmented_mib == pytest.approx(fragmented_gib * GIB)
    assert answer.percent == pytest.approx(100 * fragmented_gib / 88)
    assert answer.unusable_gpus == unusable_gpus


def test_a_gpu_that_takes_any_size_is_not_fragmented() -> None:
    answer = fragmentation_of(pair(VgpuMode.MIXED_SIZE), running(1, SMALL), off(2, LARGE))
    assert (answer.fragmented_mib, answer.unusable_gpus) == (0, 0)


def test_what_cannot_take_a_vm_now_is_left_out() -> None:
    vms = [running(1, SMALL), off(2, LARGE)]
    in_maintenance = replace(pair(), in_maintenance=True)
    assert measure_fragmentation([in_maintenance], inventory([in_maintenance], vms), catalog()) == ()


def test_models_are_told_apart_and_summed() -> None:
    esx = replace(pair(), gpus=(*pair().gpus, gpu("0000:af:00.0", "a100", 1, VgpuMode.MULTI_INSTANCE)))
    vms = [running(1, SMALL), off(2, LARGE), off(3, "grid_a100-7-40c")]
    answers = measure_fragmentation([esx], inventory([esx], vms), catalog())
    assert [answer.gpus for answer in answers] == [1, 2] or [answer.gpus for answer in answers] == [2, 1]
    whole = sum_of_models(answers)
    assert (whole.gpus, whole.free_mib, whole.fragmented_mib) == (3, (88 + 40) * GIB, 20 * GIB)
    assert whole.unusable_gpus == 1
