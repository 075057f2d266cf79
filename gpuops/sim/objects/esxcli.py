"""esxcli over SOAP: graphics and PCI devices, packages, kernel modules, and the options of the latter.

The two types behind it are known to vCenter and not to pyVmomi, nor are they in the vSphere API reference: names and
shapes as govmomi calls them (cli/esx, internal/types).

The columns are those that ESXi prints, less those of which the simulated host knows nothing (of a PCI device: revision,
interrupts, slot). Sources: "vSphere ML Accelerator Spectrum Deep Dive" by Frank Denneman for `graphics`, an output of
ESXi 6.7 in VMware's community (thread 947254) for `hardware pci list`, the type information in govmomi's simulator for
`software vib list`; `graphics device stats list` and `system module list` are from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from pyVmomi import VmomiSupport

from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.core.managed_object import method
from gpuops.sim.objects.host_managers import HostManager
from gpuops.sim.render.pci import BRIDGE, bridge_of, pci_devices
from gpuops.sim.state.host_state import HostGpu, HostState, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.objects.host_managers import HostImageConfigManager, HostKernelModuleSystem
    from gpuops.sim.vcenter.perf_counters import Values

_XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_OPEN: Final = f'<obj xmlns="urn:vim25" xmlns:xsi="{_XSI}" versionId="5.0" xsi:type="{{}}">'
LISTED_PARAMETERS: Final = ("NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice")
"""Parameters of the module nvidia that are listed even if they are not set."""


@dataclass(frozen=True, slots=True)
class EsxcliCommand:
    """One command, such as namespace `graphics.device` and name `list`, with the texts of its description."""

    namespace: str
    name: str
    help: str
    row: str = ""
    """The type of its result; empty = the command only answers `true`."""
    columns: str = ""
    """The columns of its table, in order; empty = each row is printed as a block of lines."""
    parameters: tuple[tuple[str, str, str], ...] = ()
    """Name, spelling as an option, and short option."""

    @property
    def method(self) -> str:
        return f"EsxCLI.{self.namespace}.{self.name}"

    @property
    def row_type(self) -> str:
        """`VimEsxCLIgraphicsdevicelistGraphicsDevice`."""
        return f"VimEsxCLI{self.namespace.replace('.', '')}{self.name}{self.row}"

    def described(self) -> str:
        """Return the `method` element that describes the command in the CLIInfo of its namespace."""
        parameters = "".join(
            f"<param><name>{name}</name><displayName>{spelling}</displayName><help>The {spelling}.</help>"
            f"<aliases>{short}</aliases><aliases>--{spelling}</aliases><flag>false</flag></param>"
            for name, spelling, short in self.parameters
        )
        hints = {f"fields:{self.row}": self.columns, "formatter": "table"} if self.columns else {"formatter": "simple"}
        hints_xml = "".join(f"<hints><key>{key}</key><value>{value}</value></hints>" for key, value in hints.items())
        return (
            f"<method><name>{self.name}</name><displayName>{self.name}</displayName><help>{self.help}</help>"
            f"{parameters}{hints_xml}</method>"
        )


_MODULE: Final = ("module", "module", "-m")
COMMANDS: Final = (
    EsxcliCommand("graphics.device", "list", "List the graphics devices of the host.", "GraphicsDevice"),
    EsxcliCommand("graphics.device.stats", "list", "List statistics of the graphics devices.", "GraphicsDeviceStats"),
    EsxcliCommand("graphics.host", "get", "Show the graphics properties of the host.", "GraphicsHost"),
    EsxcliCommand("hardware.pci", "list", "List the PCI devices of the host.", "PciDevice"),
    EsxcliCommand(
        "software.vib",
        "list",
        "List the installed VIB packages.",
        "VIBSummaryExt",
        "Name,Version,Vendor,Acceptance Level,Install Date,Platforms",
    ),
    EsxcliCommand("system.module", "list", "List the VMkernel modules.", "Module", "Name,Is Loaded,Is Enabled"),
    EsxcliCommand(
        "system.module.parameters",
        "list",
        "List the parameters of a module.",
        "ModuleParameter",
        "Name,Type,Value,Description",
        (_MODULE,),
    ),
    EsxcliCommand(
        "system.module.parameters",
        "set",
        "Set the parameters of a module.",
        parameters=(_MODULE, ("parameterstring", "parameter-string", "-p")),
    ),
)


class DynamicTypeManager(HostManager):
    """An object without methods: clients of esxcli ask for it and do not use it."""

    wsdl_name = "InternalDynamicTypeManager"


class ManagedMethodExecuter(HostManager):
    """Runs an esxcli command by its name; its arguments and its result are XML texts inside the SOAP message."""

    wsdl_name = "ReflectManagedMethodExecuter"

    @method
    def ExecuteSoap(self, call: Call, moid: str, version: str, method: str, argument: list[Any]) -> Any:
        """Run an esxcli command and return its SoapResult, with a fault for a command that is not simulated."""
        # from memory: no public table names the privilege; the API methods with the same effect need this one
        self.world.authority.require(call, self.host, "Host.Config.Settings")
        arguments = {parameter.name: _text(parameter.val) for parameter in argument}
        method_name = method.removeprefix("vim.")
        if method_name == "CLIInfo.FetchCLIInfo":
            return _namespace_info(arguments.get("typeName", ""))
        command = next((candidate for candidate in COMMANDS if candidate.method == method_name), None)
        if command is None:
            return _not_simulated(method_name)
        if not command.row:  # only the command that sets module options returns no rows
            self._modules.UpdateModuleOptionString(
                call, arguments.get("module", ""), arguments.get("parameterstring", "")
            )
            return response(f"{_OPEN.format('xsd:boolean')}true</obj>")
        answer = self._answer(command, call, arguments)
        if isinstance(answer, list):
            rows = "".join(f'<DataObject xsi:type="{command.row_type}">{_fields(row)}</DataObject>' for row in answer)
            return response(f"{_OPEN.format('ArrayOfDataObject')}{rows}</obj>")
        return response(f"{_OPEN.format(command.row_type)}{_fields(answer)}</obj>")

    def _answer(self, command: EsxcliCommand, call: Call, arguments: Mapping[str, str]) -> list[Row] | Row:
        """Return the rows of a `list` command, or the single row of a `get` command."""
        host = self.host
        match command.namespace:
            case "graphics.device":
                return graphics_devices(host)
            case "graphics.device.stats":
                return graphics_stats(host.state, self.world.counters(host, self.world.clock.now()))
            case "graphics.host":
                return graphics_host(host.state)
            case "hardware.pci":
                return pci_rows(host.state)
            case "software.vib":
                images: HostImageConfigManager = self.world.get(f"imageConfigManager-{host.number}")
                return vib_rows(images.fetchSoftwarePackages(call))
            case "system.module":
                return module_rows(self._modules.QueryModules(call))
            case _:  # system.module.parameters: the known parameters, and those that are set
                configured = self._modules.QueryConfiguredModuleOptionString(call, arguments.get("module", ""))
                parameters = dict.fromkeys(LISTED_PARAMETERS, "") | dict(
                    option.partition("=")[::2] for option in configured.split()
                )
                return [
                    {"Description": "", "Name": name, "Type": "charp", "Value": value}
                    for name, value in parameters.items()
                ]

    @property
    def _modules(self) -> HostKernelModuleSystem:
        return self.world.get(f"kernelModuleSystem-{self.host.number}")


def _namespace_info(type_name: str) -> Any:
    """Return the CLIInfo of the namespace that `vim.EsxCLI.NAMESPACE` names, or a fault."""
    namespace = type_name.removeprefix("vim.EsxCLI.")
    methods = "".join(command.described() for command in COMMANDS if command.namespace == namespace)
    if not methods:
        return _not_simulated(namespace)
    name = namespace.rpartition(".")[2]
    head = f"<name>{namespace}</name><displayName>{name}</displayName><help>{name}</help>"
    return response(f"{_OPEN.format('VimCLIInfo')}{head}{methods}</obj>")


def _not_simulated(name: str) -> Any:
    return fault(f"{escape(name)} is not simulated")


def _fields(row: Row) -> str:
    return "".join(f"<{name}>{escape(value)}</{name}>" for name, value in row.items())


def _text(value: str) -> str:
    """The text in `<module>nvidia</module>`."""
    return ElementTree.fromstring(value).text or ""  # noqa: S314  the test's own request, to its own simulator


Row = Mapping[str, str]
"""The cells of a row by column name without blanks, as in esxcli's XML."""

_GRAPHICS_TYPES: Final = {"basic": "Basic", "shared": "Shared", "sharedDirect": "SharedPassthru"}
_ACCEPTANCE: Final = {
    "vmware_certified": "VMwareCertified",
    "vmware_accepted": "VMwareAccepted",
    "partner": "PartnerSupported",
    "community": "CommunitySupported",
}
_PASSTHROUGH: Final = "VM Passthru"
_VMKERNEL: Final = "VMkernel"


def graphics_devices(host: HostEntity) -> list[Row]:
    """`graphics device list`: the GPUs of the host's graphics stack."""
    seats = host.seats()
    return [
        {
            "Address": gpu.pci_id,
            "VendorName": "NVIDIA Corporation",
            "DeviceName": gpu.board.name,
            "ModuleName": "nvidia" if host.state.driver_version else "None",
            "GraphicsType": _GRAPHICS_TYPES[gpu.graphics_type],
            "MemorySizeinKB": str(gpu.board.framebuffer_mib << 10),
            "NumberofVMs": str(len({seat.vm for seat in seats if seat.pci_id == gpu.pci_id})),
        }
        for gpu in host.state.gpus
        if gpu.listed
    ]


def graphics_stats(host: HostState, measured: Values) -> list[Row]:
    """`graphics device stats list`: the driver's measurements of each GPU, from the performance counters.

    Counters of type percent are in 1/100 %.
    """
    return [
        {
            "Address": gpu.pci_id,
            "DriverVersion": host.driver_version,
            "GPUUtilization": f"{measured['gpu.utilization.average', gpu.pci_id] // 100}%",
            "MemoryUsed": f"{measured['gpu.mem.usage.average', gpu.pci_id] // 100}%",
            "Temperature": f"{measured['gpu.temperature.average', gpu.pci_id]}C",
        }
        for gpu in host.gpus
        if ("gpu.utilization.average", gpu.pci_id) in measured
    ]


def graphics_host(host: HostState) -> Row:
    """`graphics host get`."""
    return {
        "DefaultGraphicsType": _GRAPHICS_TYPES[host.default_graphics_type],
        "SharedPassthruAssignmentPolicy": host.policy.value.capitalize(),
    }


def pci_rows(host: HostState) -> list[Row]:
    """`hardware pci list`."""
    passthrough_devices = {host_device.pci_id: host_device for host_device in host.devices}
    # a bridge is on the NUMA node of the device behind it
    bridge_nodes = {bridge_of(host_device.pci_id): host_device.numa_node for host_device in host.devices}
    rows: list[Row] = []
    nics = 0
    for device in pci_devices(host):
        host_device = passthrough_devices.get(device.id)
        node = host_device.numa_node if host_device is not None else bridge_nodes.get(device.id, 0)
        row = {
            **_address_and_ids(device),
            **_owner(host, device, host_device),
            "NUMANode": "-1" if node is None else str(node),
        }
        if host_device is None and device.classId != BRIDGE:  # a network card of the host itself
            row["VMkernelName"], nics = f"vmnic{nics}", nics + 1
        rows.append(row)
    return rows


def _address_and_ids(device: Any) -> dict[str, str]:
    """Return the columns with address, names and ids; ids are shown as unsigned hexadecimal numbers."""
    address = PciAddress.parse(device.id)
    ids = {"VendorID": device.vendorId, "DeviceID": device.deviceId}
    ids |= {"SubVendorID": device.subVendorId, "SubDeviceID": device.subDeviceId, "DeviceClass": device.classId}
    return {
        "Address": str(address),
        "Segment": f"0x{address.segment:04x}",
        "Bus": f"0x{address.bus:02x}",
        "Slot": f"0x{address.slot:02x}",
        "Function": f"0x{address.function:x}",
        "VMkernelName": "",
        "VendorName": device.vendorName,
        "DeviceName": device.deviceName,
        **{name: f"0x{value & 0xFFFF:04x}" for name, value in ids.items()},
        "DeviceClassName": device.deviceClassName,
    }


def _owner(host: HostState, device: Any, host_device: HostGpu | OtherHostDevice | None) -> dict[str, str]:
    """Return the device's current owner, the owner after the next reboot, and its kernel module."""
    if host_device is None:
        module = "None" if device.classId == BRIDGE else "nmlx5_core"
        return {
            "ConfiguredOwner": _VMKERNEL,
            "CurrentOwner": _VMKERNEL,
            "ModuleName": module,
            "PassthruCapable": str(device.classId != BRIDGE).lower(),
        }
    driver = "nvidia" if host.driver_version and isinstance(host_device, HostGpu) else "None"
    return {
        "ConfiguredOwner": _PASSTHROUGH if host_device.passthrough_enabled else _VMKERNEL,
        "CurrentOwner": _PASSTHROUGH if host_device.passthrough_active else _VMKERNEL,
        "ModuleName": "pciPassthru" if host_device.passthrough_active else driver,
        "PassthruCapable": "true",
    }


def vib_rows(packages: Iterable[Any]) -> list[Row]:
    """`software vib list` of the host's SoftwarePackages."""
    return [
        {
            "Name": package.name,
            "Version": package.version,
            "Vendor": package.vendor,
            "AcceptanceLevel": _ACCEPTANCE[package.acceptanceLevel],
            "InstallDate": f"{package.creationDate:%Y-%m-%d}" if package.creationDate else "",
            "Platforms": "host",
        }
        for package in packages
    ]


def module_rows(modules: Iterable[Any]) -> list[Row]:
    """`system module list` of the host's KernelModuleInfos."""
    return [
        {"Name": module.name, "IsLoaded": str(module.loaded).lower(), "IsEnabled": str(module.enabled).lower()}
        for module in modules
    ]


_VERSION: Final = "vim.version.version5"
_EXECUTER: Final = "vmodl.reflect.ManagedMethodExecuter"
_WSDL: Final = "ReflectManagedMethodExecuter"
_TYPES: Final = "vmodl.reflect.DynamicTypeManager"


def _declare_data_type(name: str, *fields: tuple[str, str, int]) -> None:
    """Declare a data type of esxcli to pyVmomi; `fields` are (name, type, flags)."""
    properties = [(field, kind, _VERSION, flags) for field, kind, flags in fields]
    VmomiSupport.CreateDataType(f"{_EXECUTER}.{name}", f"{_WSDL}{name}", "vmodl.DynamicData", _VERSION, properties)


def _register() -> None:
    """Declare the types of esxcli to pyVmomi, which does not have them; once in a process."""
    optional = VmomiSupport.F_OPTIONAL
    _declare_data_type("SoapArgument", ("name", "string", 0), ("val", "string", 0))
    _declare_data_type("SoapFault", ("faultMsg", "string", 0), ("faultDetail", "string", optional))
    _declare_data_type("SoapResult", ("response", "string", optional), ("fault", f"{_EXECUTER}.SoapFault", optional))
    # a parameter is (name, type, version, flags, privilege)
    strings = tuple((name, "string", _VERSION, 0, None) for name in ("moid", "version", "method"))
    arguments = ("argument", f"{_EXECUTER}.SoapArgument[]", _VERSION, optional, None)
    result = f"{_EXECUTER}.SoapResult"
    VmomiSupport.CreateManagedType(_TYPES, "InternalDynamicTypeManager", "vmodl.ManagedObject", _VERSION, None, [])
    VmomiSupport.CreateManagedType(
        _EXECUTER,
        _WSDL,
        "vmodl.ManagedObject",
        _VERSION,
        None,
        [
            _method("RetrieveManagedMethodExecuter", (), (optional, _EXECUTER, _EXECUTER)),
            _method("RetrieveDynamicTypeManager", (), (optional, _TYPES, _TYPES)),
            _method("ExecuteSoap", (*strings, arguments), (optional, result, result)),
        ],
    )


def _method(name: str, parameters: tuple[Any, ...], returns: tuple[int, str, str]) -> tuple[Any, ...]:
    return (name[0].lower() + name[1:], name, _VERSION, parameters, returns, None, None)


_register()


def response(text: str) -> Any:
    """A vmomi SoapResult that holds this XML."""
    return VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapResult")(response=text)


def fault(message: str) -> Any:
    """A vmomi SoapResult that holds an error of esxcli."""
    soap_fault = VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapFault")(
        faultMsg="EsxCLI.CLIFault.summary",
        faultDetail=f'<obj xmlns="urn:vim25" versionId="5.0"><errMsg>{message}</errMsg></obj>',
    )
    return VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapResult")(fault=soap_fault)
