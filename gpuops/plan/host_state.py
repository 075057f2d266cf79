"""Whether a step on a host is done, and why it must not be done now, on a fresh look at the host."""

from __future__ import annotations

from gpuops.model.host import Host
from gpuops.plan.steps import ConfigureModule, HostStep


def host_satisfied(step: HostStep, host: Host) -> bool:
    """Whether the host shows what the step would bring about; what cannot be read is not shown."""
    match step:
        case ConfigureModule(after=after):
            return host.settings is not None and host.settings.module_options == after


def host_hindrance(step: HostStep, host: Host) -> str | None:
    """Why the step must not be sent now; None = nothing speaks against it."""
    if host.connected is not True:
        return "is not connected"
    match step:
        case ConfigureModule(before=before):
            now = host.settings.module_options if host.settings is not None else None
            if now is None:
                return "its module options cannot be read"
            # the call replaces the whole string: what somebody else wrote meanwhile would be lost
            return None if now == before else "its module options were changed by somebody else meanwhile"


def privileges(step: HostStep) -> frozenset[str]:
    """What the login needs on the host (vSphere API reference, the methods' privileges)."""
    match step:
        case ConfigureModule():
            return frozenset({"Host.Config.Settings"})
