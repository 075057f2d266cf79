"""Reads and checks scenario files: YAML that declares what a simulated vCenter contains.

Names hold Python format fields, `vdi-{:03}`, filled with numbers from `first` on. A count is a number, the name of a
parameter, or `{percent: 40, of: hosts}`; counts of one list whose percents add up to 100 add up to the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import yaml
from msgspec import Meta, field

from gpuops.config.bundle_file import SCENARIO, SUFFIX, read_member
from gpuops.config.wrong_value import told
from gpuops.config.yaml_file import parse_yaml, read_text
from gpuops.errors import PolicyError
from gpuops.sim.scenario import bundle
from gpuops.sim.scenario.as_read import ClusterAsRead, HostAsRead, NodeAsRead, VmAsRead
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.desktop_people import Office
from gpuops.sim.state.drs import Behavior
from gpuops.sim.state.gpu_admission import GpuOrder, StartOrder, VgpuPolicy

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: eight times faster. For the scenarios that gpuops brings alone: it
has no limit of depth, and a file of 50,000 brackets ends the process."""


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file declares, checked by msgspec: with pydantic its import and models took a seventh of a command on
    `sim:lab`."""


class Share(_Declared, frozen=True):
    """A part of a parameter."""

    percent: Annotated[float, Meta(gt=0, le=100)]
    of: str


Count = int | str | Share


class ModelDeclared(_Declared, frozen=True, kw_only=True):
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
    """Where that is no whole number of GiB."""
    numa_nodes: int = 2
    nodes: tuple[NodeAsRead, ...] = ()
    """Where they are not alike."""


class GpuDeclared(_Declared, frozen=True):
    """One physical GPU of a host."""

    board: str
    """A key of the catalogue: `a100`."""
    at: str
    """PCI address."""
    node: int | None
    """None = it is beside none."""
    mode: GpuMode = GpuMode.SAME_SIZE
    passthrough: bool = False
    next_passthrough: bool | None = None
    """From the next boot on; None = the same."""
    label: str | None = None
    nvlink: str | None = None
    type: Literal["shared", "sharedDirect", "basic"] = "sharedDirect"
    next_type: Literal["shared", "sharedDirect", "basic"] | None = None
    """From the next boot on; None = the same."""


class DeviationDeclared(_Declared, frozen=True):
    """Where hosts go by other rules than the documented ones."""

    gpus: GpuOrder = GpuOrder.DOCUMENTED
    starts: StartOrder = StartOrder.DOCUMENTED
    forbids: tuple[str, ...] = ()


class OtherDeviceDeclared(_Declared, frozen=True, kw_only=True):
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
    """None = it is beside none."""
    memory_gib: int = 0
    """What it maps as a BAR."""
    passthrough: bool = False
    next_passthrough: bool | None = None
    """From the next boot on; None = the same."""
    label: str | None = None


class HostsDeclared(_Declared, frozen=True, kw_only=True):
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
    """Of one host that was read from a vCenter."""
    others: tuple[OtherDeviceDeclared, ...] = ()
    """Devices that are no NVIDIA GPU."""


class HostProfileDeclared(_Declared, frozen=True):
    """A host profile of stateless hosts: they boot with the options of module nvidia that it has."""

    name: str
    module_options: str = ""


class ClusterDeclared(_Declared, frozen=True, kw_only=True):
    """A cluster, or with `size` as many as its hosts fill."""

    name: str
    size: int | None = None
    drs: Behavior | None = Behavior.PARTIAL
    drs_options: Mapping[str, str] = field(default_factory=dict)
    """Advanced options of DRS, such as `VgpuMMAutomationTimeoutSecs: "-1"`."""
    host_profile: HostProfileDeclared | None = None
    """What is attached to it."""
    config_managed: bool = False
    """Whether it keeps the configuration of its hosts (vSphere Configuration Profiles)."""
    hosts: tuple[HostsDeclared, ...]
    as_read: ClusterAsRead | None = None
    """Of one cluster that was read from a vCenter."""


class DatastoreDeclared(_Declared, frozen=True):
    name: str
    capacity_gib: int
    free_gib: int
    free_mib: int | None = None
    """Where that is no whole number of GiB."""
    moid: str | None = None
    """Of one that was read from a vCenter."""


class DynamicDeclared(_Declared, frozen=True):
    """A Dynamic DirectPath I/O device."""

    boards: tuple[str, ...] = ()
    label: str | None = None
    allowed: tuple[tuple[int, int], ...] = ()
    """(vendor id, device id) pairs, of what is in no catalogue: `[4098, 30115]` is 1002:75a3."""


class DeviceDeclared(_Declared, frozen=True):
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


class GuestLoginDeclared(_Declared, frozen=True):
    username: str
    password: str


class ProgramDeclared(_Declared, frozen=True):
    path: str
    takes_s: float | None = 0.0
    """None = it never ends by itself."""
    exit_code: int = 0
    prints: str | None = None
    """What it writes to the file behind the last `>` of its arguments; `@EPOCH@` is the guest's time."""
    removes: bool = False
    """Whether it removes the file that its arguments end with."""


class GuestDeclared(_Declared, frozen=True):
    """A guest system."""

    id: str
    name: str
    linux: bool = True
    tools: bool = True
    boot_s: float | None = 0.0
    """From the power-on until VMware Tools run in it; None = they never do."""
    login: GuestLoginDeclared | None = None
    """Whom guest operations let in; without it the guest takes part in none."""
    programs: tuple[ProgramDeclared, ...] = ()
    """What can be started in it, where nothing really runs."""
    clock_ahead_s: float = 0.0
    """How far its clock is ahead of vCenter's."""
    processes: Literal["declared", "real"] = "declared"
    """`real`: whoever logs in to it starts processes of this machine, with the rights of whoever runs the simulator."""


class QuestionDeclared(_Declared, frozen=True):
    id: str
    text: str
    choices: dict[str, str]


class ManagerDeclared(_Declared, frozen=True):
    """ManagedByInfo of a VM: `com.vmware.vcenter.wcp` and `VirtualMachine` are those of the VM Service."""

    extension: str
    type: str = "VirtualMachine"


PowerWord = Literal["on", "off", "suspended", "fit"]
"""`fit`: on if its host takes it, otherwise off."""


class VmsDeclared(_Declared, frozen=True, kw_only=True):
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
    """Where that is no whole number of GiB."""
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
    """Of one VM that was read from a vCenter."""


class DesktopPoolDeclared(_Declared, frozen=True):
    """A desktop pool of a simulated Horizon Connection Server, for `sim serve --horizon-port`."""

    name: str
    vms: tuple[str, ...]
    """Names of its VMs, where * stands for anything."""
    source: Literal["VIRTUAL_CENTER", "INSTANT_CLONE"] = "VIRTUAL_CENTER"
    type: Literal["AUTOMATED", "MANUAL"] = "AUTOMATED"
    power_policy: Literal["TAKE_NO_POWER_ACTION", "ALWAYS_POWERED_ON", "SUSPEND", "POWER_OFF"] = "TAKE_NO_POWER_ACTION"
    logins_per_hour: float = 0.0
    """How often a user logs in to a machine of it that is free."""


class DirectPathProfileDeclared(_Declared, frozen=True):
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


class ReservationDeclared(_Declared, frozen=True):
    """Units of a DirectPath profile that only these VMs may take, as the VM classes of a Supervisor reserve them."""

    units: Annotated[int, Meta(ge=1)]
    on: str
    """Name of a cluster."""
    vgpu: str = ""
    """The vGPU type that a profile is of; else `profile`, its name."""
    profile: str = ""
    vms: tuple[str, ...] = ()
    """Names, where * stands for anything."""


class ScenarioFile(_Declared, frozen=True, kw_only=True):
    """A whole scenario."""

    description: str
    start: Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
    parameters: dict[str, int] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The least and the most a parameter may be."""
    options: dict[str, bool] = field(default_factory=dict)
    """Advanced settings of the vCenter: `vgpu.hotmigrate.enabled`."""
    busy: Literal["queue", "refuse"] = "queue"
    """What becomes of a task of a VM that has one already (`vcenter/tasks.py`)."""
    datacenter: str
    models: dict[str, ModelDeclared]
    guests: dict[str, GuestDeclared]
    datastores: tuple[DatastoreDeclared, ...]
    networks: tuple[str, ...]
    clusters: tuple[ClusterDeclared, ...]
    vms: tuple[VmsDeclared, ...]
    desktop_pools: tuple[DesktopPoolDeclared, ...] = ()
    api_version: str | None = None
    """`9.0.0.0`: of vSphere's API, whose release the hosts have too; None = that of `world.py`."""
    direct_path_profiles: tuple[DirectPathProfileDeclared, ...] = ()
    reservations: tuple[ReservationDeclared, ...] = ()

    @classmethod
    def of(cls, content: object) -> ScenarioFile:
        """The scenario that plain values declare. Raises msgspec.ValidationError for the first that is wrong."""
        return msgspec.convert(content, cls)


def names() -> tuple[str, ...]:
    """The scenarios that gpuops brings; a `NAME-policy.yaml` beside one is a rotation policy made for it."""
    files = resources.files("gpuops.sim").joinpath("scenarios").iterdir()
    found = (file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return tuple(sorted(name for name in found if not name.endswith("-policy")))


def read(spelled: str) -> tuple[ScenarioFile, dict[str, int]]:
    """The scenario of a name such as `lab` or `fleet:hosts=200,vms=2000`, of a YAML file, or of a bundle that `gpuops
    bundle` wrote; and its parameters.

    Raises PolicyError for an unknown name or parameter, a value out of range, or a file that is not as declared here.
    """
    name, _, settings = spelled.partition(":")
    if name.endswith(SUFFIX):
        scenario = _checked(read_member(Path(name), SCENARIO), name)
        bundle.check(scenario, name)
    elif name.endswith((".yaml", ".yml")):
        scenario = parse(read_text(Path(name)), name)
    else:
        scenario = _checked(_bundled(name), name)
    return scenario, _parameters(scenario, name, settings)


@cache
def _bundled(name: str) -> object:
    """The content of a scenario that gpuops brings; read once, for nobody changes it."""
    if name not in names():
        raise PolicyError(
            f"no scenario {name!r}", hint=f"there are {', '.join(names())}, or name a YAML file or a bundle"
        )
    text = resources.files("gpuops.sim").joinpath("scenarios", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  safe either way


def parse(text: str, name: str) -> ScenarioFile:
    """The scenario in the YAML text of a file. Raises PolicyError."""
    return _checked(parse_yaml(text, name, merges=True), name)


def _checked(content: object, name: str) -> ScenarioFile:
    """The scenario that plain values declare. Raises PolicyError for the first that is wrong."""
    try:
        return ScenarioFile.of(content)
    except msgspec.ValidationError as error:
        raise PolicyError(f"scenario {name}: {_wrong_entry(content) or told(error)}") from error


def _wrong_entry(content: object) -> str:
    """What is wrong with a server model or a guest, whose name msgspec does not tell; '' = nothing."""
    for section, kind in (("models", ModelDeclared), ("guests", GuestDeclared)):
        entries = content.get(section) if isinstance(content, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                msgspec.convert(entry, kind)
            except msgspec.ValidationError as error:
                return told(error, f"{section}.{name}")
    return ""


def _parameters(scenario: ScenarioFile, name: str, settings: str) -> dict[str, int]:
    values = dict(scenario.parameters)
    for setting in filter(None, settings.split(",")):
        key, _, text = setting.partition("=")
        if key not in values or not text.isdigit():
            known = ", ".join(f"{known}={value}" for known, value in scenario.parameters.items()) or "none"
            raise PolicyError(f"scenario {name} has no parameter {setting!r}", hint=f"its parameters: {known}")
        values[key] = int(text)
        least, most = scenario.limits.get(key, (1, values[key]))
        if not least <= values[key] <= most:
            raise PolicyError(f"scenario {name}: {key}={text} is out of range", hint=f"from {least} to {most}")
    return values


def numbers(counts: list[Count], parameters: Mapping[str, int]) -> list[int]:
    """What the counts of one list come to; shares of one parameter are rounded so that they add up."""
    found: list[int] = []
    so_far: dict[str, float] = {}
    for count in counts:
        match count:
            case Share(percent=percent, of=of):
                low = so_far.get(of, 0.0)
                so_far[of] = low + percent
                total = parameters[of]
                found.append(round(total * so_far[of] / 100) - round(total * low / 100))
            case str():
                found.append(parameters[count])
            case _:
                found.append(count)
    return found
