"""DiagnosticManager: which logs a vCenter and its hosts have; what is in them is not simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, method

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

VCENTER_LOGS: Final = {"vpxd:vpxd.log": "/var/log/vmware/vpxd/vpxd.log"}
HOST_LOGS: Final = {
    "hostd": "/var/log/hostd.log",
    "vpxa": "/var/log/vpxa.log",
    "vmkernel": "/var/log/vmkernel.log",
    "vobd": "/var/log/vobd.log",
}


class DiagnosticManager(ManagedObject):
    """The logs by key; without a host, those of the vCenter."""

    wsdl_name = "DiagnosticManager"
    world: World

    def _logs(self, host: Any) -> dict[str, str]:
        if host is None:
            return VCENTER_LOGS
        self.world.get(host)
        return HOST_LOGS

    @method
    def QueryDescriptions(self, call: Call, host: Any = None) -> Any:
        return [
            vim.DiagnosticManager.LogDescriptor(
                key=key,
                fileName=file,
                creator=key.partition(":")[0],
                format="plain",
                mimeType="text/plain",
                info=vim.Description(label=f"{key} log", summary=f"{key} log"),
            )
            for key, file in self._logs(host).items()
        ]
