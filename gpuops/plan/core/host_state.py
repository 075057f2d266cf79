"""Whether a step on a host is done, and why it must not be done now, on a fresh look at the host."""

from __future__ import annotations

from typing import assert_never

from gpuops.model.host import Host
from gpuops.model.host_settings import HostSettings
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureMig, ConfigureModule, ConfigurePassthrough, HostStep

_OTHERS = "{} changed by somebody else meanwhile"


def host_satisfied(step: HostStep, host: Host) -> bool:
    """Whether the host shows what the step would bring about; what cannot be read is not shown."""
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(after=options):
            return settings.module_options == options
        case ConfigureGraphics(after=graphics):
            return settings.graphics == graphics
        case ConfigurePassthrough(devices=devices):
            now = {state.address: state for state in settings.passthrough or ()}
            return all(
                (state := now.get(each.address)) is not None
                and state.enabled == each.enabled
                and each.label in (None, state.label or "")
                for each in devices
            )
        case ConfigureMig(devices=addresses, on=on):
            pending = {state.address: state.pending for state in settings.mig or ()}
            return all(pending.get(address) is on for address in addresses)
        case _:
            assert_never(step)


def host_hindrance(step: HostStep, host: Host) -> str | None:
    """Why the step must not be sent now; None = nothing speaks against it.

    The calls replace a whole string or configuration: what somebody else wrote meanwhile would be lost.
    """
    if host.connected is not True:
        return "is not connected"
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(before=options):
            if settings.module_options is None:
                return "its module options cannot be read"
            return None if settings.module_options == options else _OTHERS.format("its module options were")
        case ConfigureGraphics(before=graphics):
            if settings.graphics is None:
                return "its graphics configuration cannot be read"
            return None if settings.graphics == graphics else _OTHERS.format("its graphics configuration was")
        case ConfigurePassthrough():
            return None if settings.passthrough is not None else "its passthrough devices cannot be read"
        case ConfigureMig():
            return None if settings.mig is not None else "its nvidia-smi does not answer"
        case _:
            assert_never(step)


def privileges(step: HostStep) -> frozenset[str]:
    """What the login needs on the host (vSphere API reference, the methods' privileges)."""
    match step:
        case ConfigureModule() | ConfigureGraphics():
            return frozenset({"Host.Config.Settings"})
        case ConfigurePassthrough():
            return frozenset({"Host.Config.PciPassthru"})
        case ConfigureMig():
            return frozenset()  # it is no call to vCenter
        case _:
            assert_never(step)
