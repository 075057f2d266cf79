"""`config`, `summary`, `runtime` and `configManager` of a host."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render import host_graphics, host_network, host_storage
from gpuops.sim.render.defaults import default
from gpuops.sim.render.pci import network_ports
from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.host_state import HostState

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity

OWN_MOIDS: Final = {"advancedOption": "hostOptions"}
"""What the moids of managers begin with where that is not the name of their field in configManager."""


@cache
def managers() -> dict[str, tuple[Any, str]]:
    """configManager field -> type, and what its moid begins with; the host's own number follows."""
    own_types = {"cryptoManager": vim.encryption.CryptoManagerHost}  # the field has the type of all CryptoManagers
    return {
        field.name: (own_types.get(field.name, field.type), OWN_MOIDS.get(field.name, field.name))
        for field in vim.host.ConfigManager._GetPropertyList()
        if issubclass(field.type, VmomiSupport.ManagedObject)
    }


def config(host: HostEntity) -> Any:
    state, seats = host.state, host.seats()
    gpus = state.for_admission(seats)
    return default(
        "HostConfigInfo",
        host=host.ref,
        product=product(host.world.api_version),
        hyperThread=vim.host.CpuSchedulerSystem.HyperThreadScheduleInfo(
            available=state.model.threads_per_core > 1, active=state.model.threads_per_core > 1, config=True
        ),
        network=host.read("config.network"),
        vmotion=host_network.vmotion(state),
        virtualNicManagerInfo=host_network.selections(state),
        pciPassthruInfo=host_graphics.passthrough_info(state),
        graphicsInfo=host_graphics.graphics_info(state, seats),
        graphicsConfig=host_graphics.graphics_config(state),
        sharedPassthruGpuTypes=host_graphics.offered(gpus),
        sharedGpuCapabilities=host_graphics.capabilities(state, gpus),
        assignableHardwareBinding=host_graphics.bindings(host),
        assignableHardwareConfig=host_graphics.hardware_labels(host.state),
        option=host.manager(OWN_MOIDS["advancedOption"]).read("setting"),
        storageDevice=host_storage.device(host.datastores()),
        fileSystemVolume=host_storage.volumes(host.datastores()),
        firewall=host_network.firewall(state),
    )


def product(api_version: str) -> Any:
    numbers = api_version.split(".")
    release = ".".join((*numbers, "0")[:3])
    return default(
        "AboutInfo",
        name="VMware ESXi",
        fullName=f"VMware ESXi {release} build-0 (simulated by gpuops)",
        version=release,
        osType="vmnix-x86",
        productLineId="embeddedEsx",
        apiType="HostAgent",
        apiVersion=api_version,
        licenseProductName="VMware ESX Server",
        licenseProductVersion="8.0",
    )


def runtime(host: HostState) -> Any:
    return default(
        "HostRuntimeInfo",
        connectionState=host.connection,
        powerState=host.power,
        inMaintenanceMode=host.in_maintenance,
        bootTime=host.boot_time,
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
        numNics=len(network_ports(host)),
        numHBAs=1,
    )


def config_manager(number: str) -> Any:
    """The host's managers, each under a moid of its own."""
    named = {field: kind(f"{prefix}-{number}") for field, (kind, prefix) in managers().items()}
    return filled(vim.host.ConfigManager, **named)


def connection_info(host: HostEntity) -> Any:
    """QueryHostConnectionInfo."""
    return filled(
        vim.host.ConnectInfo,
        host=host.read("summary"),
        vm=[vm.read("summary") for vm in host.vms()],
        network=[],
        datastore=[],
    )
