"""`config`, `summary`, `runtime` and `configManager` of a host."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.render import host_graphics
from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.host_state import HostState

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity

MANAGERS: Final = {
    "advancedOption": (vim.option.OptionManager, "hostOptions"),
    "graphicsManager": (vim.host.GraphicsManager, "graphicsManager"),
    "pciPassthruSystem": (vim.host.PciPassthruSystem, "pciPassthruSystem"),
    "assignableHardwareManager": (vim.host.AssignableHardwareManager, "assignableHardwareManager"),
    "kernelModuleSystem": (vim.host.KernelModuleSystem, "kernelModuleSystem"),
    "imageConfigManager": (vim.host.ImageConfigManager, "imageConfigManager"),
}
"""configManager field -> type, and what its moid begins with; the host's own number follows."""


def config(host: HostEntity) -> Any:
    state, seats = host.state, host.seats()
    gpus = state.for_admission(seats)
    return filled(
        vim.host.ConfigInfo,
        host=host.ref,
        product=product(host.world.api_version),
        hyperThread=vim.host.CpuSchedulerSystem.HyperThreadScheduleInfo(
            available=state.model.threads_per_core > 1, active=state.model.threads_per_core > 1, config=True
        ),
        network=_network(state),
        flags=vim.host.FlagInfo(backgroundSnapshotsEnabled=False),
        adminDisabled=False,
        lockdownMode="lockdownDisabled",
        pciPassthruInfo=host_graphics.passthrough_info(state),
        graphicsInfo=host_graphics.graphics_info(state, seats),
        graphicsConfig=host_graphics.graphics_config(state),
        sharedPassthruGpuTypes=host_graphics.offered(gpus),
        sharedGpuCapabilities=host_graphics.capabilities(state, gpus),
        assignableHardwareBinding=host_graphics.bindings(host),
        assignableHardwareConfig=vim.host.AssignableHardwareConfig(),
        option=host.world.get(f"hostOptions-{host.number}").read("setting"),
    )


def product(api_version: str) -> Any:
    numbers = api_version.split(".")
    release = ".".join((*numbers, "0")[:3])
    return vim.AboutInfo(
        name="VMware ESXi",
        fullName=f"VMware ESXi {release} build-0 (simulated by gpuops)",
        vendor="VMware, Inc.",
        version=release,
        build="0",
        osType="vmnix-x86",
        productLineId="embeddedEsx",
        apiType="HostAgent",
        apiVersion=api_version,
        licenseProductName="VMware ESX Server",
        licenseProductVersion="8.0",
    )


def runtime(host: HostState) -> Any:
    return filled(
        vim.host.RuntimeInfo,
        connectionState=host.connection,
        powerState=host.power,
        standbyMode="none",
        inMaintenanceMode=host.in_maintenance,
        inQuarantineMode=False,
        bootTime=host.boot_time,
        cryptoState="incapable",
    )


def quick_stats(host: HostState, usage: tuple[int, int], now: datetime) -> Any:
    return vim.host.Summary.QuickStats(
        overallCpuUsage=usage[0],
        overallMemoryUsage=usage[1],
        distributedCpuFairness=0,
        distributedMemoryFairness=0,
        uptime=max(0, int((now - host.boot_time).total_seconds())),
    )


def summary(
    ref: Any, host: HostState, *, usage: tuple[int, int], now: datetime, custom: list[Any], release: str
) -> Any:
    return filled(
        vim.host.Summary,
        host=ref,
        hardware=_hardware_summary(host),
        runtime=runtime(host),
        config=filled(
            vim.host.Summary.ConfigSummary,
            name=host.name,
            port=443,
            product=product(release),
            vmotionEnabled=True,
            faultToleranceEnabled=False,
        ),
        quickStats=quick_stats(host, usage, now),
        overallStatus="green",
        rebootRequired=host.reboot_required,
        customValue=custom,
        maxEVCModeKey="intel-icelake",
    )


def _hardware_summary(host: HostState) -> Any:
    model = host.model
    return vim.host.Summary.HardwareSummary(
        vendor=model.vendor,
        model=model.model,
        uuid=host.uuid,
        memorySize=model.memory_mib << 20,
        cpuModel=model.cpu_model,
        cpuMhz=model.cpu_mhz,
        numCpuPkgs=model.sockets,
        numCpuCores=model.cores,
        numCpuThreads=model.threads,
        numNics=model.nics,
        numHBAs=1,
    )


def config_manager(number: str) -> Any:
    """The host's managers, each under a moid of its own."""
    managers = {field: kind(f"{prefix}-{number}") for field, (kind, prefix) in MANAGERS.items()}
    return vim.host.ConfigManager(**managers)


def connection_info(host: HostEntity) -> Any:
    """QueryHostConnectionInfo."""
    return filled(
        vim.host.ConnectInfo,
        host=host.read("summary"),
        vm=[vm.read("summary") for vm in host.vms()],
        network=[],
        datastore=[],
    )


def _network(host: HostState) -> Any:
    """A management interface: name and address, from the documentation range."""
    low = int(host.uuid.replace("-", "")[-4:], 16)
    address = vim.host.IpConfig(dhcp=False, ipAddress=f"203.0.113.{low % 250 + 1}", subnetMask="255.255.255.0")
    nic = vim.host.VirtualNic(
        device="vmk0",
        key="key-vim.host.VirtualNic-vmk0",
        portgroup="Management Network",
        spec=vim.host.VirtualNic.Specification(ip=address, mac="00:50:56:00:00:01", mtu=1500),
    )
    name, _, domain = host.name.partition(".")
    return vim.host.NetworkInfo(
        vnic=[nic],
        dnsConfig=filled(vim.host.DnsConfig, dhcp=False, hostName=name, domainName=domain),
        ipV6Enabled=False,
    )
