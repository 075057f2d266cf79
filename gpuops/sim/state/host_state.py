"""The state of a simulated ESXi host: its GPUs, its networking and the ports of its network cards."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.sim.state.board import GpuBoard, GpuMode
from gpuops.sim.state.gpu_admission import DOCUMENTED, Deviation, GpuLoad, RunningVgpu, VgpuPolicy

MANAGEMENT: Final = "Management Network"


@dataclass(frozen=True, slots=True)
class VirtualSwitch:
    """A standard switch; `nics` are its uplinks by device name."""

    name: str
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PortGroup:
    """A port group of a standard switch."""

    name: str
    switch: str


@dataclass(frozen=True, slots=True)
class KernelAdapter:
    """A VMkernel adapter; one without `ip` has the host's management address.

    On a distributed switch `group` is the key of its port group, and it has the uuid of the switch and the key of its
    port.
    """

    device: str
    group: str
    ip: str = ""
    mtu: int = 1500
    services: tuple[str, ...] = ()
    switch: str = ""
    port: str = ""


@dataclass(frozen=True, slots=True)
class ProxySwitch:
    """A host's part in a distributed switch, named by moid: its physical adapters, and the keys of its uplink ports."""

    switch: str
    nics: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """All networking of one host."""

    switches: tuple[VirtualSwitch, ...]
    groups: tuple[PortGroup, ...]
    adapters: tuple[KernelAdapter, ...]
    proxies: tuple[ProxySwitch, ...] = ()

    def proxy(self, switch: str) -> ProxySwitch | None:
        return next((proxy for proxy in self.proxies if proxy.switch == switch), None)

    def with_proxy(self, switch: str, proxy: ProxySwitch | None) -> HostNetwork:
        """Return a copy with this part in a distributed switch; None = it is not a member."""
        other_proxies = tuple(proxy_switch for proxy_switch in self.proxies if proxy_switch.switch != switch)
        return replace(self, proxies=other_proxies if proxy is None else (*other_proxies, proxy))


def installed_network(networks: tuple[str, ...]) -> HostNetwork:
    """One switch, the management network, and a port group for each of these networks.

    Its uplink is the first physical adapter, as after an installation (VMware, ESXi Installation and Setup).
    """
    switch = VirtualSwitch("vSwitch0", ("vmnic0",))
    groups = tuple(PortGroup(name, switch.name) for name in (*networks, MANAGEMENT))
    return HostNetwork((switch,), groups, (KernelAdapter("vmk0", MANAGEMENT, services=("management", "vmotion")),))


MAX_FUNCTIONS: Final = 64
"""Virtual functions that a port can be divided into."""
_FUNCTIONS_OF_SLOT: Final = 8


@dataclass(slots=True)
class NetworkPort:
    """A physical network adapter; `functions` are in force, `next_functions` are what the host will have."""

    pci_id: str
    numa_node: int | None = 0
    """None = it is not near one NUMA node."""
    speed_mbit: int = 25_000
    link: bool = True
    rdma: bool = False
    """Whether it has an RDMA device, which speaks RoCE v1 and v2."""
    max_functions: int = 0
    """0 = it has no SR-IOV."""
    functions: int = 0
    next_functions: int = 0

    def function_ids(self) -> list[str]:
        """Return the PCI addresses of its virtual functions.

        They are on the port's bus: those of port 0 from slot 1 function 0 on, 64 addresses for each port.
        """
        port = PciAddress.parse(self.pci_id)
        first = _FUNCTIONS_OF_SLOT + MAX_FUNCTIONS * port.function
        return [
            str(PciAddress(port.segment, port.bus, *divmod(first + number, _FUNCTIONS_OF_SLOT)))
            for number in range(self.functions)
        ]


REBOOT_S: Final = 600.0
PVRDMA_ADAPTER: Final = "Net.PVRDMAVmknic"
"""The advanced setting that names the VMkernel adapter for paravirtual RDMA; '' = none."""
OPTIONS: Final[dict[str, str | int]] = {
    PVRDMA_ADAPTER: "", "UserVars.SuppressShellWarning": 0, "Mem.AllocGuestLargePage": 1
}  # fmt: skip
"""Advanced settings of a host as it is installed."""


@dataclass(slots=True)
class Boot:
    """The deviations of one boot, such as a late driver."""

    takes_s: float | None = REBOOT_S
    """From the moment it goes down until vCenter sees it again; None = it does not come back."""
    options: str | None = None
    """Module options that a host profile sets before the modules are loaded; None = none does."""
    forgets_mig: bool = False
    """Whether its GPUs come up without MIG mode, even if it was configured."""
    driver_late_s: float | None = 0.0
    """Seconds after the boot until the driver lists the GPUs; None = never."""


SHARED_DIRECT = "sharedDirect"
INSTALLED: Final = installed_network(("VM Network",))


@dataclass(frozen=True, slots=True)
class HostNode:
    """One NUMA node of a server."""

    id: int
    threads: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class HostModel:
    """A server model: what hosts of one kind share."""

    vendor: str
    model: str
    cpu_model: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    cpu_mhz: int
    memory_mib: int
    numa_nodes: int
    nics: int = 2
    nodes: tuple[HostNode, ...] = ()
    """Its NUMA nodes, if they differ from each other."""

    def every_node(self) -> tuple[HostNode, ...]:
        """Its NUMA nodes, in their order."""
        equal_shares = (self.threads // self.numa_nodes, self.memory_mib // self.numa_nodes)
        return self.nodes or tuple(HostNode(number, *equal_shares) for number in range(self.numa_nodes))

    @property
    def cores(self) -> int:
        return self.sockets * self.cores_per_socket

    @property
    def threads(self) -> int:
        return self.cores * self.threads_per_core

    @property
    def capacity_mhz(self) -> int:
        return self.cores * self.cpu_mhz


class GpuFault(StrEnum):
    """What may be wrong with a physical GPU. vCenter shows none of it, the host's nvidia-smi does.

    Sources: NVIDIA nvidia-smi manual, RETURN VALUE; NVML_ERROR_RESET_REQUIRED; NVIDIA GPU Memory Error Management.
    From memory: that ESXi starts no vGPU on a GPU that is lost or requires a reset.
    """

    LOST = "lost"
    """nvidia-smi names it in a sentence, and answers for the others (assumption: smi-lost-gpu)."""
    REQUIRES_RESET = "requires-reset"
    RECOVERY_RESET = "recovery-reset"
    """The driver's recovery action is `Reset`."""
    UNKNOWN_ERROR = "unknown-error"
    CORRUPT_INFOROM = "corrupt-inforom"
    """nvidia-smi names it in a sentence, and its answer is complete (assumption: smi-corrupt-inforom)."""
    ROW_REMAP_PENDING = "row-remap-pending"


NO_VGPU_STARTS: Final = frozenset({GpuFault.LOST, GpuFault.REQUIRES_RESET, GpuFault.RECOVERY_RESET})
STAYS_AFTER_BOOT: Final = frozenset({GpuFault.CORRUPT_INFOROM})


@dataclass(slots=True)
class HostGpu:
    """One physical GPU. `mode` and `graphics_type` are in force; `configured_*` is what the host will have."""

    pci_id: str
    board: GpuBoard
    numa_node: int | None
    """None = it is not near one NUMA node."""
    mode: GpuMode = GpuMode.SAME_SIZE
    graphics_type: str = SHARED_DIRECT
    configured_type: str = SHARED_DIRECT
    passthrough_enabled: bool = False
    passthrough_active: bool = False
    label: str | None = None
    next_mode: GpuMode | None = None
    """The mode that nvidia-smi has set for the next boot; None = no change."""
    ecc: bool = True
    next_ecc: bool = True
    """Set by nvidia-smi, in force from the next boot on."""
    nvlink: str | None = None
    """Name of the NVLink bridge or switch it shares with others of the host; None = none."""
    faults: frozenset[GpuFault] = frozenset()
    waits_for_maintenance: bool = False
    """Whether the configured passthrough setting comes in force in the next maintenance mode, without a reboot."""

    @property
    def vendor_id(self) -> int:
        return NVIDIA_VENDOR_ID

    @property
    def device_id(self) -> int:
        return self.board.device_id

    @property
    def device_name(self) -> str:
        return self.board.name

    @property
    def vendor_name(self) -> str:
        return "NVIDIA Corporation"

    @property
    def memory_mib(self) -> int:
        """The memory that it maps as a BAR."""
        return self.board.framebuffer_mib

    @property
    def listed(self) -> bool:
        """Whether the host's graphics stack lists it: a passthrough device belongs to no host driver."""
        return not self.passthrough_active

    @property
    def serves_vgpus(self) -> bool:
        return self.listed and self.graphics_type == SHARED_DIRECT

    def for_admission(self, seats: tuple[RunningVgpu, ...]) -> GpuLoad:
        own_seats = tuple(seat for seat in seats if seat.pci_id == self.pci_id)
        return GpuLoad(
            self.pci_id, self.board, self.mode, self.serves_vgpus, own_seats, bool(self.faults & NO_VGPU_STARTS)
        )


@dataclass(slots=True)
class OtherHostDevice:
    """A PCI device that is no NVIDIA GPU, and that VMs can be given whole."""

    pci_id: str
    vendor_id: int
    device_id: int
    vendor_name: str
    device_name: str
    pci_class: int
    class_name: str
    numa_node: int | None
    memory_mib: int = 0
    """The memory that it maps as a BAR; 0 = little."""
    passthrough_enabled: bool = False
    passthrough_active: bool = False
    label: str | None = None
    subsystem_id: int = 0
    waits_for_maintenance: bool = False
    """Whether `passthrough_enabled` comes in force in the next maintenance mode, without a reboot."""


@dataclass(slots=True)
class HostState:
    """One ESXi host. References to other objects are managed object ids."""

    name: str
    uuid: str
    model: HostModel
    parent: str
    gpus: tuple[HostGpu, ...]
    boot_time: datetime
    driver_version: str
    no_suspend: frozenset[str] = frozenset()
    """vGPU types whose VMs this host can neither suspend, migrate nor snapshot with memory."""
    rebinds_without_reboot: bool = False
    """Whether passthrough changes are in force at once (HostCapability.deviceRebindWithoutRebootSupported)."""
    policy: VgpuPolicy = VgpuPolicy.PERFORMANCE
    deviation: Deviation = DOCUMENTED
    default_graphics_type: str = SHARED_DIRECT
    connection: str = "connected"
    power: str = "poweredOn"
    in_maintenance: bool = False
    module_options: str = ""
    """Options of the `nvidia` kernel module for the next boot."""
    loaded_module_options: str = ""
    datastores: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    network: HostNetwork = INSTALLED
    vms: dict[str, None] = field(default_factory=dict)
    """The VMs registered there, in the order they came."""
    others: tuple[OtherHostDevice, ...] = ()
    """Devices that are no NVIDIA GPU."""
    ports: tuple[NetworkPort, ...] = ()
    """Ports of network cards, in addition to the built-in ones; one at the address of a built-in port replaces it."""
    options: dict[str, str | int] = field(default_factory=lambda: dict(OPTIONS))
    """Advanced settings."""
    rulesets: dict[str, bool] = field(default_factory=dict)
    """Rule sets of its firewall that are not as after the installation: whether each is enabled."""

    @property
    def board_names(self) -> tuple[str, ...]:
        """The GPU model of each GPU: what device summaries depend on."""
        return tuple(gpu.board.name for gpu in self.gpus)

    @property
    def gpu_settings(self) -> tuple[tuple[str | bool | int | None, ...], ...]:
        """Return the settings of all GPUs, devices and ports as a key: hosts with equal keys show equal devices."""
        other_devices = (*(astuple(device) for device in self.others), *(astuple(port) for port in self.ports))
        return other_devices + tuple(
            (
                gpu.pci_id,
                gpu.board.name,
                len(gpu.board.types),  # another driver may lack some
                gpu.numa_node,
                gpu.mode,
                gpu.graphics_type,
                gpu.configured_type,
                gpu.passthrough_enabled,
                gpu.passthrough_active,
                gpu.label,
                gpu.waits_for_maintenance,
            )
            for gpu in self.gpus
        )

    @property
    def usable(self) -> bool:
        """Whether VMs can be started there."""
        return self.connection == "connected" and not self.in_maintenance

    @property
    def system_id(self) -> str:
        """The systemId that a static DirectPath backing must have; it ties the VM to this host."""
        return self.uuid

    @property
    def reboot_required(self) -> bool:
        """Whether a setting waits for a reboot: passthrough, graphics type, virtual functions or module options."""
        return (
            any(
                (gpu.passthrough_enabled != gpu.passthrough_active and not gpu.waits_for_maintenance)
                or gpu.configured_type != gpu.graphics_type
                for gpu in self.gpus
            )
            or any(
                device.passthrough_enabled != device.passthrough_active and not device.waits_for_maintenance
                for device in self.others
            )
            or any(port.functions != port.next_functions for port in self.ports)
            or (self.module_options != self.loaded_module_options)
        )

    def gpu(self, pci_id: str) -> HostGpu | None:
        lower_id = pci_id.lower()
        return next((gpu for gpu in self.gpus if gpu.pci_id == lower_id), None)

    @property
    def devices(self) -> tuple[HostGpu | OtherHostDevice, ...]:
        """The devices that can be passed through to VMs: all except the host's own network card."""
        return (*self.gpus, *self.others)

    def device(self, pci_id: str) -> HostGpu | OtherHostDevice | None:
        lower_id = pci_id.lower()
        return next((device for device in self.devices if device.pci_id == lower_id), None)

    def for_admission(self, seats: tuple[RunningVgpu, ...]) -> list[GpuLoad]:
        """The GPUs as admission sees them, with the vGPUs that run on them."""
        return [gpu.for_admission(seats) for gpu in self.gpus]

    def nvlink_sets(self) -> dict[str, tuple[HostGpu, ...]]:
        """Return the GPUs by name of the NVLink bridge or switch that connects them."""
        linked_gpus: dict[str, tuple[HostGpu, ...]] = {}
        for gpu in self.gpus:
            if gpu.nvlink is not None:
                linked_gpus[gpu.nvlink] = (*linked_gpus.get(gpu.nvlink, ()), gpu)
        return linked_gpus
