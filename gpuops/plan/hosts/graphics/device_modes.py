"""Which modes a change of vGPU sizes or of DirectPath I/O comes to where vSphere 9.1 sets modes, and if it can.

Before 9.1, and where vCenter tells no mode of a device, the calls of 8.x are used: `mode_changes` is None then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuops.model.devices.device_mode import SERVED_AS, DeviceMode
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, PassthroughState, SharedType
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import ModeChange

SIZES: Final[Mapping[str, DeviceMode]] = {size.value: mode for mode, size in SERVED_AS.items()}
"""The mode of a GPU whose vGPUs are of these sizes (`SizeMode`)."""


def mode_changes(settings: HostSettings, wanted: Mapping[PciAddress, DeviceMode]) -> tuple[ModeChange, ...] | None:
    """The changes of modes; None = they are made by the calls of 8.x."""
    states = {state.address: state for state in settings.passthrough or ()}
    modes = {address: states[address].mode if address in states else None for address in wanted}
    if settings.sets_modes is not True or not wanted:
        return None
    if any(mode is None for mode in modes.values()):
        return None
    return tuple(ModeChange(each, str(modes[each]), mode) for each, mode in wanted.items())


def size_changes(settings: HostSettings, sizes: Mapping[PciAddress, str | None]) -> tuple[ModeChange, ...] | None:
    """The same of vGPU sizes: a GPU that is configured for DirectPath I/O would be taken out of it by its mode."""
    given = {state.address for state in settings.passthrough or () if state.enabled}
    if any(address in given or size not in SIZES for address, size in sizes.items()):
        return None
    return mode_changes(settings, {address: SIZES[size] for address, size in sizes.items() if size is not None})


def whole_mode(state: PassthroughState) -> DeviceMode:
    """The mode that gives a device to VMs whole: Enhanced DirectPath where it is the only one that it has."""
    only_enhanced = DeviceMode.DIRECT_PATH not in state.configurable
    if only_enhanced and DeviceMode.ENHANCED_DIRECT_PATH in state.configurable:
        return DeviceMode.ENHANCED_DIRECT_PATH
    return DeviceMode.DIRECT_PATH


def mode_back(state: PassthroughState, settings: HostSettings) -> DeviceMode:
    """The mode that gives a device back: for vGPUs, unless the host's default is another or it has no such mode."""
    default = settings.graphics.default_type if settings.graphics is not None else SharedType.SHARED_DIRECT
    serves = DeviceMode.VGPU_SAME_SIZE in state.configurable and default == SharedType.SHARED_DIRECT
    return DeviceMode.VGPU_SAME_SIZE if serves else DeviceMode.HOST


def not_offered(host: Host, settings: HostSettings, changes: Iterable[ModeChange]) -> Iterator[Rejection]:
    """A refusal for each device that vCenter does not configure to its mode."""
    offered = {state.address: state.configurable for state in settings.passthrough or ()}
    for each in changes:
        if each.after not in offered.get(each.address, ()):
            modes = ", ".join(offered.get(each.address, ())) or "none"
            yield Rejection(
                f"{host.name} {each.address}", f"vCenter does not configure it to {each.after}; to: {modes}"
            )


def sizes_due(host: Host, settings: HostSettings, meant: Iterable[PciAddress]) -> tuple[ModeChange, ...]:
    """The sizes that are configured and not in force: they wait for maintenance mode or a reboot."""
    states = {state.address: state for state in settings.passthrough or ()}
    due = (
        (address, state.mode)
        for address in meant
        if (state := states.get(address)) is not None and (gpu := host.gpu(address)) is not None and _waits(gpu, state)
    )
    return tuple(ModeChange(address, str(mode), DeviceMode(str(mode))) for address, mode in due)


def _waits(gpu: PhysicalGpu, state: PassthroughState) -> bool:
    size = next((size for mode, size in SERVED_AS.items() if mode == state.mode), None)
    return size is not None and gpu.vgpu_mode in SERVED_AS.values() and gpu.vgpu_mode is not size
