"""What scenario files declare of hosts, their hardware, VMs and pools; `scenario_file.py` reads and checks them.

Names may hold `{}` or `{:03}` (three digits), which become numbers from `first` on. They are no format strings of
Python: a scenario may come from a stranger, and those can ask for any width. A count is a number, the name of a
parameter, or `{percent: 40, of: hosts}`; counts of one list whose percents add up to 100 add up to the parameter.

`gpuops bundle` writes scenarios with further keys for a cluster, host or VM that was read from a vCenter. The rules of
the simulated hosts place a declared VM, but a VM that was read runs where it ran: the search for a wrong rule needs the
original state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.desktop_people import Office, RecordForm
from gpuops.sim.state.drs import Behavior, HaAdmission
from gpuops.sim.state.gpu_admission import GpuOrder, StartOrder, VgpuPolicy
from gpuops.sim.state.host_state import MAX_FUNCTIONS, GpuFault

if TYPE_CHECKING:
    from gpuops.sim.scenario.scenario_file import ScenarioFile


class _AsRead(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checked by msgspec, as the rest of a scenario."""


class NodeAsRead(_AsRead, frozen=True):
    id: int
    logical_cpus: int
    memory_mib: int


class HostAsRead(_AsRead, frozen=True):
    moid: str
    connection: Literal["connected", "disconnected"] = "connected"
    in_maintenance: bool = False
    booted: datetime | None = None
    default_graphics_type: Literal["shared", "sharedDirect"] = "sharedDirect"
    datastores: tuple[str, ...] | None = None
    """Moids of those that it sees; None = all."""


class RuleAsRead(_AsRead, frozen=True):
    """One DRS rule; VMs, and the hosts that they are to be on and off, are moids."""

    name: str
    kind: Literal["together", "apart", "hosts"]
    vms: tuple[str, ...]
    on: tuple[str, ...] | None = None
    off: tuple[str, ...] = ()
    mandatory: bool = False


class ClusterAsRead(_AsRead, frozen=True):
    moid: str | None = None
    standalone: bool = False
    """Whether it is the place of a host that is in no cluster."""
    ha: HaAdmission | None = None
    """None = HA refuses no power-on."""
    overrides: Mapping[str, Literal["manual", "partiallyAutomated", "fullyAutomated", "off"]] = field(
        default_factory=dict
    )
    """By a VM's moid: a behavior of DRS, or `off`."""
    rules: tuple[RuleAsRead, ...] = ()


class VmAsRead(_AsRead, frozen=True):
    """One VM. What is known of its devices is in their order."""

    moid: str
    datastore: str | None = None
    """Moid; None = the first one."""
    gpus: tuple[str, ...] = ()
    """The PCI address under each of its vGPUs while it runs; () = where its host puts it."""
    starts: tuple[int | None, ...] = ()
    """Where each lies on its GPU, as far as the host told."""
    held: tuple[str | None, ...] = ()
    """The PCI address under each of its DirectPath devices."""
    device_keys: tuple[int, ...] = ()
    """() = they are numbered anew."""
    nodes: tuple[int | None, ...] = ()
    """The virtual NUMA node of each device."""
    group: str | None = None
    """The device group that its vGPUs are."""
    cores_per_socket: int = 1
    cores_per_numa_node: int | None = None
    memory_reservation_mib: int = 0
    cpu_reservation_mhz: int = 0
    memory_locked: bool = False
    cpu_hot_add: bool = False
    nested_virtualization: bool = False
    booted: datetime | None = None
    suspended: datetime | None = None


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file declares, checked by msgspec: with pydantic its import and models took a seventh of a command on
    `sim:lab`."""


class Share(Declared, frozen=True):
    """A part of a parameter."""

    percent: Annotated[float, Meta(gt=0, le=100)]
    of: str


Count = int | str | Share


class ModelDeclared(Declared, frozen=True, kw_only=True):
    """A server model."""

    vendor: str
    model: str
    cpu: str
    sockets: int = 2
    cores_per_socket: int
    threads_per_core: int = 2
    cpu_mhz: int
    memory_gib: int
    memory_mib: int | None = None
    """The exact size if it is not a whole number of GiB."""
    numa_nodes: int = 2
    nodes: tuple[NodeAsRead, ...] = ()
    """The NUMA nodes, if they differ from each other."""


class GpuDeclared(Declared, frozen=True):
    """One physical GPU of a host."""

    board: str
    """A key of the catalogue: `a100`."""
    at: str
    """PCI address."""
    node: int | None
    """None = it is near none of them."""
    mode: GpuMode = GpuMode.SAME_SIZE
    passthrough: bool = False
    next_passthrough: bool | None = None
    """From the next boot on; None = the same."""
    label: str | None = None
    nvlink: str | None = None
    type: Literal["shared", "sharedDirect", "basic"] = "sharedDirect"
    next_type: Literal["shared", "sharedDirect", "basic"] | None = None
    """From the next boot on; None = the same."""
    faults: tuple[GpuFault, ...] = ()
    """What is wrong with it."""


class DeviationDeclared(Declared, frozen=True):
    """Where hosts go by other rules than the documented ones."""

    gpus: GpuOrder = GpuOrder.DOCUMENTED
    starts: StartOrder = StartOrder.DOCUMENTED
    forbids: tuple[str, ...] = ()


class OtherDeviceDeclared(Declared, frozen=True, kw_only=True):
    """A PCI device of a host that is no NVIDIA GPU. The ids are hexadecimal."""

    name: str
    vendor_name: str
    vendor: Annotated[str, Meta(pattern="^[0-9a-fA-F]{4}$")]
    device: Annotated[str, Meta(pattern="^[0-9a-fA-F]{4}$")]
    class_code: Annotated[str, Meta(pattern="^[0-9a-fA-F]{4}$")]
    """`1200`: base class and subclass."""
    class_name: str
    at: str
    """PCI address."""
    node: int | None
    """None = it is near none of them."""
    memory_gib: int = 0
    """What it maps as a BAR."""
    passthrough: bool = False
    next_passthrough: bool | None = None
    """From the next boot on; None = the same."""
    label: str | None = None


class NetworkPortDeclared(Declared, frozen=True, kw_only=True):
    """A port of a network card: vmnic2 and so on, beside the two ports that every host has; at the address of such a
    one, that one."""

    at: str
    """PCI address."""
    node: int | None
    """None = it is near none of them."""
    gbit: int = 25
    link: bool = True
    rdma: bool = False
    """Whether it has an RDMA device."""
    functions: Annotated[int, Meta(ge=0, le=MAX_FUNCTIONS)] = 0
    """Virtual functions (SR-IOV) in force."""
    most_functions: Annotated[int, Meta(ge=0, le=MAX_FUNCTIONS)] = 0
    """The virtual functions that it could have; 0 = as many as are in force."""


class KernelAdapterDeclared(Declared, frozen=True):
    """A VMkernel adapter on a distributed port group: vmk1 and so on."""

    group: str
    mtu: int = 1500
    services: tuple[str, ...] = ()


class SwitchDeclared(Declared, frozen=True, kw_only=True):
    """A distributed switch."""

    name: str
    mtu: int = 1500
    groups: tuple[str, ...] = ()
    """Names of its port groups; each has eight ports at first, and grows."""


class HostsDeclared(Declared, frozen=True, kw_only=True):
    """Hosts of one kind."""

    name: str
    count: Count = 1
    first: int = 1
    group: str | None = None
    """What VMs refer to; without it the hosts' names."""
    model: str
    driver: str = ""
    """Version of the NVIDIA vGPU manager VIB; '' = not installed."""
    policy: VgpuPolicy = VgpuPolicy.PERFORMANCE
    rebinds_without_reboot: bool = False
    no_suspend: tuple[str, ...] = ()
    deviation: DeviationDeclared = DeviationDeclared()
    gpus: tuple[GpuDeclared, ...] = ()
    as_read: HostAsRead | None = None
    """Further values of one host that was read from a vCenter."""
    others: tuple[OtherDeviceDeclared, ...] = ()
    """Devices that are no NVIDIA GPU."""
    ports: tuple[NetworkPortDeclared, ...] = ()
    """Ports of its network cards."""
    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By distributed switch that the host is a member of, the physical adapters it gives: `{rdma: [vmnic2]}`."""
    adapters: tuple[KernelAdapterDeclared, ...] = ()
    options: Mapping[str, str | int] = field(default_factory=dict)
    """Advanced settings: `Net.PVRDMAVmknic: vmk1`."""
    rulesets: Mapping[str, bool] = field(default_factory=dict)
    """Firewall rule sets whose state differs from that after the installation: `pvrdma: true`."""


class HostProfileDeclared(Declared, frozen=True):
    """A host profile of stateless hosts: they boot with the options of module nvidia that it has."""

    name: str
    module_options: str = ""


class ClusterDeclared(Declared, frozen=True, kw_only=True):
    """A cluster, or with `size` as many as its hosts fill."""

    name: str
    size: int | None = None
    drs: Behavior | None = Behavior.PARTIAL
    drs_options: Mapping[str, str] = field(default_factory=dict)
    """Advanced options of DRS, such as `VgpuMMAutomationTimeoutSecs: "-1"`."""
    host_profile: HostProfileDeclared | None = None
    """The host profile attached to it."""
    config_managed: bool = False
    """Whether it keeps the configuration of its hosts (vSphere Configuration Profiles)."""
    hosts: tuple[HostsDeclared, ...]
    as_read: ClusterAsRead | None = None
    """Further values of one cluster that was read from a vCenter."""


class DatastoreDeclared(Declared, frozen=True):
    name: str
    capacity_gib: int
    free_gib: int
    free_mib: int | None = None
    """The exact size if it is not a whole number of GiB."""
    moid: str | None = None
    """The id of a datastore that was read from a vCenter."""


class DynamicDeclared(Declared, frozen=True):
    """A Dynamic DirectPath I/O device."""

    boards: tuple[str, ...] = ()
    label: str | None = None
    allowed: tuple[tuple[int, int], ...] = ()
    """(vendor id, device id) pairs, of what is in no catalogue: `[4098, 30115]` is 1002:75a3."""


class DeviceDeclared(Declared, frozen=True):
    """One device of a VM: exactly one of these."""

    vgpu: str | None = None
    direct_path: str | None = None
    """PCI address on the VM's host."""
    dynamic: DynamicDeclared | None = None
    group: str | None = None
    """A vendor device group's name: adds all its members."""
    sriov: str | None = None
    """An SR-IOV network card: PCI address of the port of the host's network card."""
    other: bool = False
    """A passthrough device of another kind."""


class GuestLoginDeclared(Declared, frozen=True):
    username: str
    password: str


class ProgramDeclared(Declared, frozen=True):
    path: str
    takes_s: float | None = 0.0
    """None = it never ends by itself."""
    exit_code: int = 0
    prints: str | None = None
    """What it writes to the file behind the last `>` of its arguments; `@EPOCH@` is the guest's time."""
    removes: bool = False
    """Whether it removes the file that its arguments end with."""


class GuestDeclared(Declared, frozen=True):
    """A guest system."""

    id: str
    name: str
    linux: bool = True
    tools: bool = True
    boot_s: float | None = 0.0
    """From the power-on until VMware Tools run in it; None = they never do."""
    login: GuestLoginDeclared | None = None
    """The user of guest operations; without it the guest refuses them."""
    programs: tuple[ProgramDeclared, ...] = ()
    """The programs that can be started in it if its processes are only simulated."""
    clock_ahead_s: float = 0.0
    """How far its clock is ahead of vCenter's."""
    processes: Literal["declared", "real"] = "declared"
    """`real`: a login to it starts processes of this machine, with the rights of the user who runs the simulator."""


class QuestionDeclared(Declared, frozen=True):
    id: str
    text: str
    choices: dict[str, str]


class ManagerDeclared(Declared, frozen=True):
    """ManagedByInfo of a VM: `com.vmware.vcenter.wcp` and `VirtualMachine` are those of the VM Service."""

    extension: str
    type: str = "VirtualMachine"


PowerWord = Literal["on", "off", "suspended", "fit"]
"""`fit`: on if its host takes it, otherwise off."""


class VmsDeclared(Declared, frozen=True, kw_only=True):
    """VMs of one kind, spread over hosts in turn."""

    name: str
    count: Count = 1
    first: int = 1
    folder: str
    on: str
    """A host's name, or a group of hosts."""
    guest: str
    cpus: int
    memory_gib: int
    memory_mib: int | None = None
    """The exact size if it is not a whole number of GiB."""
    disk_gib: int
    firmware: Literal["efi", "bios"] = "efi"
    hardware_version: int = 20
    devices: tuple[DeviceDeclared, ...] = ()
    extra_config: dict[str, str] = field(default_factory=dict)
    reserved: bool | None = None
    """Whether all memory is reserved; without it, when there are devices."""
    power: PowerWord | dict[PowerWord, float] = "off"
    """A word for all, or percents."""
    cpu_usage_mhz: int = 0
    office: Office | None = None
    """Before the start they were used as the desktops of such an office, as their counters tell; without it as now."""
    console_connections: int = 0
    attributes: dict[str, str] = field(default_factory=dict)
    template: bool = False
    snapshot: str | None = None
    question: QuestionDeclared | None = None
    annotation: str = ""
    managed_by: ManagerDeclared | None = None
    """Another product that the VMs belong to."""
    as_read: VmAsRead | None = None
    """Further values of one VM that was read from a vCenter."""


class DesktopPoolDeclared(Declared, frozen=True):
    """A desktop pool of a simulated Horizon Connection Server, for `sim serve --horizon-port`."""

    name: str
    vms: tuple[str, ...]
    """Names of its VMs, where * stands for anything."""
    source: Literal["VIRTUAL_CENTER", "INSTANT_CLONE"] = "VIRTUAL_CENTER"
    type: Literal["AUTOMATED", "MANUAL"] = "AUTOMATED"
    power_policy: Literal["TAKE_NO_POWER_ACTION", "ALWAYS_POWERED_ON", "SUSPEND", "POWER_OFF"] = "TAKE_NO_POWER_ACTION"
    logins_per_hour: float = 0.0
    """How often a user logs in to a machine of it that is free."""
    spare_machines: Annotated[int, Meta(ge=0)] = 0
    """How many of its machines are kept powered on and unused, whatever the power policy."""
    records: RecordForm = RecordForm.AS_IN_VCENTER
    """How the records of its machines name their VMs."""
    second_vcenter: bool = False
    """Whether the pod has a second vCenter with the same folders, and a machine there for each of this pool."""


class DirectPathProfileDeclared(Declared, frozen=True):
    """A DirectPath profile (vSphere 9.0) of one of these."""

    name: str
    vgpu: str = ""
    """A vGPU type: `nvidia_a40-8q`."""
    group: str = ""
    """A vendor device group: `Nvidia:2@grid_a100d-80c%NVLink`."""
    devices: tuple[str, ...] = ()
    """Whole devices: `10de:20b5`, vendor and device id in hexadecimal."""
    label: str | None = None
    """Hardware label that these have."""


class ReservationDeclared(Declared, frozen=True):
    """Units of a DirectPath profile that only these VMs may take, as the VM classes of a Supervisor reserve them."""

    units: Annotated[int, Meta(ge=1)]
    on: str
    """Name of a cluster."""
    vgpu: str = ""
    """The vGPU type of a profile; without it the profile is named by `profile`."""
    profile: str = ""
    vms: tuple[str, ...] = ()
    """Names, where * stands for anything."""


LONGEST_NAME: Final = 255
"""Characters of a name as it is declared; a host's DNS name has no more."""
NAMES_AND_COUNTS: Final = "a name may hold {} or {:03}; a count is a number, or a parameter of this scenario"
_NUMBER: Final = re.compile(r"\{(?::0?([1-9]))?\}")


def expand_name(pattern: str, number: int) -> str:
    """Return the name with this number.

    >>> expand_name("esx-{:03}.lab", 7)
    'esx-007.lab'
    """
    return _NUMBER.sub(lambda field: str(number).zfill(int(field[1] or 0)), pattern)


def numbers(counts: list[Count], parameters: Mapping[str, int]) -> list[int]:
    """Return the counts of one list as numbers; shares of one parameter are rounded so that their sum is right.

    Example: three shares of 33, 33 and 34 percent of a parameter 10 are 3, 4 and 3.
    """
    resolved: list[int] = []
    percent_so_far: dict[str, float] = {}
    for count in counts:
        match count:
            case Share(percent=percent, of=of):
                earlier_percent = percent_so_far.get(of, 0.0)
                percent_so_far[of] = earlier_percent + percent
                total = parameters[of]
                resolved.append(round(total * percent_so_far[of] / 100) - round(total * earlier_percent / 100))
            case str():
                resolved.append(parameters[count])
            case _:
                resolved.append(count)
    return resolved


def wrong_repetitions(scenario: ScenarioFile) -> Iterator[str]:
    """Yield a message with its place in the file for each wrong name pattern and each count by an unknown parameter."""
    entries: list[tuple[str, str, Count]] = []  # (place in the file, name pattern, count)
    for number, cluster in enumerate(scenario.clusters):
        entries.append((f"clusters.{number}", cluster.name, 1))
        entries += _entries(f"clusters.{number}.hosts", [(hosts.name, hosts.count) for hosts in cluster.hosts])
    entries += _entries("vms", [(vms.name, vms.count) for vms in scenario.vms])
    for place, name, count in entries:
        if len(name) > LONGEST_NAME:
            yield f"{place}.name: has more than {LONGEST_NAME} characters"
        if set(_NUMBER.sub("", name)) & set("{}"):
            yield f"{place}.name: {name[:80]!r} may use braces only as {{}} or {{:03}}"
        parameter = count.of if isinstance(count, Share) else count
        if isinstance(parameter, str) and parameter not in scenario.parameters:
            yield f"{place}.count: there is no parameter {parameter[:80]!r}"


def _entries(place: str, declared: Sequence[tuple[str, Count]]) -> Iterator[tuple[str, str, Count]]:
    return ((f"{place}.{number}", name, count) for number, (name, count) in enumerate(declared))
