"""The command that brings into force what waits for a host's reboot, where there is one."""

from __future__ import annotations

from typing import Final, assert_never

from gpuops.model.gpu import GraphicsType, PciAddress
from gpuops.model.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.hosts.scheduler.state import HostScheduler

BY_HAND: Final = "maintenance mode and a reboot, when its VMs are out of the way"
_ROLLING: Final = "rolling"


def passthrough(host: str, gpu: PciAddress, *, on: bool) -> str:
    """For DirectPath I/O that waits."""
    verb = f"passthrough {'on' if on else 'off'}"
    return command(verb, device=str(gpu), host=hosts_called(host), reboot=_ROLLING)


def graphics(host: str, gpu: PciAddress, configured: GraphicsType) -> str:
    """For a graphics type that waits; one that no command sets is brought into force by hand."""
    if configured not in (GraphicsType.SHARED, GraphicsType.SHARED_DIRECT):
        return BY_HAND
    return command("mode set", type=str(configured), gpu=str(gpu), host=hosts_called(host), reboot=_ROLLING)


def mig(host: str, gpu: PciAddress, *, on: bool) -> str:
    """For a MIG mode that waits."""
    verb = f"mig set {'on' if on else 'off'}"
    return command(verb, gpu=str(gpu), host=hosts_called(host), host_shell="ssh", reboot=_ROLLING)


def module_options(found: HostScheduler) -> str:
    """For module options that wait: the policy of one GPU set as it is, which reboots the host and changes nothing."""
    for each in found.gpus:
        scheduler = each.configured
        if each.note is None and isinstance(scheduler, VgpuScheduler) and scheduler.weighted:
            gpu, host = str(each.gpu.address), hosts_called(found.host.name)
            return command("scheduler set", **_options(scheduler), gpu=gpu, host=host, reboot=_ROLLING)
    return BY_HAND


def _options(scheduler: VgpuScheduler) -> dict[str, str]:
    options = {"policy": str(scheduler.policy)}
    match scheduler.slices:
        case TimeSlices(time_slice_ms=milliseconds):
            options["time_slice"] = "default" if milliseconds is None else f"{milliseconds}ms"
        case Frequency(frequency_hz=hertz, averaging=averaging):
            options |= {"frequency": f"{hertz}Hz"} if hertz is not None else {}
            options |= {"averaging": str(averaging)} if averaging is not None else {}
        case None:
            pass
        case _:
            assert_never(scheduler.slices)
    return options
