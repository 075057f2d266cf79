"""HostImageConfigManager: the software packages (VIBs) installed on a host, its NVIDIA driver among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.filled import filled
from gpuops.sim.managed_object import method
from gpuops.sim.objects.host_part import HostPart

if TYPE_CHECKING:
    from gpuops.sim.call import Call


class HostImageConfigManager(HostPart):
    """What is installed."""

    wsdl_name = "HostImageConfigManager"

    @method
    def fetchSoftwarePackages(self, call: Call) -> Any:
        driver = self.host.state.driver_version
        packages = [("esx-base", "8.0.3-0.0.24022510", "VMware")]
        if driver:
            packages.append(("NVD-AIE-800-Driver" if "aie" in driver else "NVD-VGPU-800-Driver", driver, "NVIDIA"))
        return [self._package(*package) for package in packages]

    @method
    def HostImageConfigGetAcceptance(self, call: Call) -> str:
        return "partner"

    def _package(self, name: str, version: str, vendor: str) -> Any:
        from pyVmomi import vim

        return filled(
            vim.host.SoftwarePackage,
            name=name,
            version=version,
            type="bootbank",
            vendor=vendor,
            acceptanceLevel="vmware_accepted" if vendor == "NVIDIA" else "vmware_certified",
            summary=f"{name} {version}",
            description=f"{name} {version}",
            creationDate=self.host.state.boot_time,
        )
