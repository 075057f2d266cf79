"""Fixes: the command that brings into force what waits for a host's reboot, where there is one."""

from __future__ import annotations

from typing import Final, assert_never

from gpuops.model.gpu import GraphicsType, PciAddress
from gpuops.model.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.plan.scheduler.state import HostScheduler

BY_HAND: Final = "maintenance mode and a reboot, when its VMs are out of the way"
_ROLLING: Final = "--reboot rolling"


def passthrough(host: str, gpu: PciAddress, *, on: bool) -> str:
    """For DirectPath I/O that waits."""
    return f"gpuops passthrough {'on' if on else 'off'} --device {gpu} --host {host} {_ROLLING}"


def graphics(host: str, gpu: PciAddress, configured: GraphicsType) -> str:
    """For a graphics type that waits; one that no command sets is brought into force by hand."""
    if configured not in (GraphicsType.SHARED, GraphicsType.SHARED_DIRECT):
        return BY_HAND
    return f"gpuops mode set --type {configured} --gpu {gpu} --host {host} {_ROLLING}"


def mig(host: str, gpu: PciAddress, *, on: bool) -> str:
    """For a MIG mode that waits."""
    return f"gpuops mig set {'on' if on else 'off'} --gpu {gpu} --host {host} --host-shell ssh {_ROLLING}"


def module_options(found: HostScheduler) -> str:
    """For module options that wait: the policy of one GPU set as it is, which reboots the host and changes nothing."""
    for each in found.gpus:
        scheduler = each.configured
        if each.note is None and isinstance(scheduler, VgpuScheduler) and scheduler.weighted:
            return (
                f"gpuops scheduler set {_words(scheduler)} --gpu {each.gpu.address} --host {found.host.name} {_ROLLING}"
            )
    return BY_HAND


def _words(scheduler: VgpuScheduler) -> str:
    words = [f"--policy {scheduler.policy}"]
    match scheduler.slices:
        case TimeSlices(time_slice_ms=milliseconds):
            words.append(f"--time-slice {'default' if milliseconds is None else f'{milliseconds}ms'}")
        case Frequency(frequency_hz=hertz, averaging=averaging):
            words += [f"--frequency {hertz}Hz"] if hertz is not None else []
            words += [f"--averaging {averaging}"] if averaging is not None else []
        case None:
            pass
        case _:
            assert_never(scheduler.slices)
    return " ".join(words)
