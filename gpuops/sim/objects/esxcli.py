"""esxcli over SOAP: graphics and PCI devices, packages, kernel modules, and the options of the latter.

The two types behind it are known to vCenter and not to pyVmomi, nor are they in the vSphere API reference: names and
shapes as govmomi calls them (cli/esx, internal/types).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from pyVmomi import VmomiSupport

from gpuops.sim.core.managed_object import method
from gpuops.sim.objects.host_managers import HostManager
from gpuops.sim.render import esxcli_rows

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.objects.host_managers import HostImageConfigManager, HostKernelModuleSystem
    from gpuops.sim.render.esxcli_rows import Row

_VERSION: Final = "vim.version.version5"
_EXECUTER: Final = "vmodl.reflect.ManagedMethodExecuter"
_WSDL: Final = "ReflectManagedMethodExecuter"
_TYPES: Final = "vmodl.reflect.DynamicTypeManager"


def _data(name: str, *fields: tuple[str, str, int]) -> None:
    properties = [(field, kind, _VERSION, flags) for field, kind, flags in fields]
    VmomiSupport.CreateDataType(f"{_EXECUTER}.{name}", f"{_WSDL}{name}", "vmodl.DynamicData", _VERSION, properties)


def _register() -> None:
    """Makes pyVmomi know the types; once in a process."""
    optional = VmomiSupport.F_OPTIONAL
    _data("SoapArgument", ("name", "string", 0), ("val", "string", 0))
    _data("SoapFault", ("faultMsg", "string", 0), ("faultDetail", "string", optional))
    _data("SoapResult", ("response", "string", optional), ("fault", f"{_EXECUTER}.SoapFault", optional))
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


_XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_OPEN: Final = f'<obj xmlns="urn:vim25" xmlns:xsi="{_XSI}" versionId="5.0" xsi:type="{{}}">'
KNOWN: Final = ("NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice")
"""Parameters that the module lists though nothing is set."""


@dataclass(frozen=True, slots=True)
class EsxcliCommand:
    """One command: `graphics.device` `list`, and what esxcli's description of it says."""

    namespace: str
    name: str
    help: str
    row: str = ""
    """The type of what it answers with; empty = it answers that it has been done."""
    columns: str = ""
    """Of a table, in their order; empty = each row is printed as a block of lines."""
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
        """The `method` element of its namespace's CLIInfo."""
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
    """Asked for by clients of esxcli, and then not used."""

    wsdl_name = "InternalDynamicTypeManager"


class ManagedMethodExecuter(HostManager):
    """Runs an esxcli command by its name; the arguments and the answer are XML of their own."""

    wsdl_name = "ReflectManagedMethodExecuter"

    @method
    def ExecuteSoap(self, call: Call, moid: str, version: str, method: str, argument: list[Any]) -> Any:
        # from memory: no public table names the privilege; it is that of the calls it stands for
        self.world.authority.require(call, self.host, "Host.Config.Settings")
        arguments = {parameter.name: _text(parameter.val) for parameter in argument}
        method_name = method.removeprefix("vim.")
        if method_name == "CLIInfo.FetchCLIInfo":
            return _namespace_info(arguments.get("typeName", ""))
        command = next((candidate for candidate in COMMANDS if candidate.method == method_name), None)
        if command is None:
            return _not_simulated(method_name)
        if not command.row:
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
        """The rows of a command, or the one row of a `get`."""
        host = self.host
        match command.namespace:
            case "graphics.device":
                return esxcli_rows.graphics_devices(host)
            case "graphics.device.stats":
                return esxcli_rows.graphics_stats(host.state, self.world.counters(host, self.world.clock.now()))
            case "graphics.host":
                return esxcli_rows.graphics_host(host.state)
            case "hardware.pci":
                return esxcli_rows.pci_rows(host.state)
            case "software.vib":
                images: HostImageConfigManager = self.world.get(f"imageConfigManager-{host.number}")
                return esxcli_rows.vib_rows(images.fetchSoftwarePackages(call))
            case "system.module":
                return esxcli_rows.module_rows(self._modules.QueryModules(call))
            case _:
                configured = self._modules.QueryConfiguredModuleOptionString(call, arguments.get("module", ""))
                parameters = dict.fromkeys(KNOWN, "") | dict(
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
    """The CLIInfo of a namespace."""
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
