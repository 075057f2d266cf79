"""Which GPUs a host must show again after a reboot: not those that something else than the step changes with it."""

from __future__ import annotations

import pytest

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SmiState
from gpuops.plan.core.steps import ConfigureModule
from gpuops.plan.hosts.change.rolling_plan import gpus_listed_after_boot, gpus_staying_in_mig_mode

GPU = PciAddress.parse("0000:d8:00.0")


@pytest.mark.parametrize(
    ("waits_for_vms", "mig_pending", "listed", "in_mig_mode"),
    [
        (False, None, (GPU,), (GPU,)),
        (False, True, (GPU,), (GPU,)),
        (False, False, (GPU,), ()),
        (True, True, (), ()),
    ],
)
def test_a_gpu_that_waits_for_another_mode_need_not_come_back_as_it_is(
    *,
    waits_for_vms: bool,
    mig_pending: bool | None,
    listed: tuple[PciAddress, ...],
    in_mig_mode: tuple[PciAddress, ...],
) -> None:
    gpu = PhysicalGpu(
        GPU,
        "NVIDIA A100",
        NVIDIA_VENDOR_ID,
        0x20B5,
        graphics_type=GraphicsType.SHARED_DIRECT,
        vgpu_mode=VgpuMode.MULTI_INSTANCE,
        passthrough=Passthrough(capable=True, enabled=waits_for_vms, active=False),
    )
    states = None if mig_pending is None else (SmiState(GPU, current=True, pending=mig_pending),)
    host = Host("h-1", "esx-1", gpus=(gpu,), settings=HostSettings(mig=states))
    step = ConfigureModule("h-1", "", "NVreg_RegistryDwords=RmPVMRL=0x01")
    assert gpus_listed_after_boot(host) == listed
    assert gpus_staying_in_mig_mode(step, host) == in_mig_mode
