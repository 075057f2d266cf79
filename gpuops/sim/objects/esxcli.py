"""esxcli over SOAP, as much of it as shows and sets the options of a kernel module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from gpuops.sim.core.managed_object import method
from gpuops.sim.objects import esxcli_types as reflection
from gpuops.sim.objects.host_managers import HostManager

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.objects.host_managers import HostKernelModuleSystem

_XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_OPEN: Final = f'<obj xmlns="urn:vim25" xmlns:xsi="{_XSI}" versionId="5.0" xsi:type="{{}}">'
NAMESPACE: Final = "system.module.parameters"
KNOWN: Final = ("NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice")
"""Parameters that the module lists though nothing is set."""

_INFO: Final = (
    f"<name>{NAMESPACE}</name><displayName>parameters</displayName><help>Parameters of VMkernel modules.</help>"
    "<method><name>list</name><displayName>list</displayName><help>List the parameters of a module.</help>"
    "<param><name>module</name><displayName>module</displayName><help>Its name.</help>"
    "<aliases>-m</aliases><aliases>--module</aliases><flag>false</flag></param>"
    "<hints><key>fields:ModuleParameter</key><value>Name,Type,Value,Description</value></hints>"
    "<hints><key>formatter</key><value>table</value></hints></method>"
    "<method><name>set</name><displayName>set</displayName><help>Set the parameters of a module.</help>"
    "<param><name>module</name><displayName>module</displayName><help>Its name.</help>"
    "<aliases>-m</aliases><aliases>--module</aliases><flag>false</flag></param>"
    "<param><name>parameterstring</name><displayName>parameter-string</displayName><help>The string.</help>"
    "<aliases>-p</aliases><aliases>--parameter-string</aliases><flag>false</flag></param></method>"
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
        given = {each.name: _text(each.val) for each in argument}
        match method.removeprefix("vim."):
            case "CLIInfo.FetchCLIInfo" if given.get("typeName") == f"vim.EsxCLI.{NAMESPACE}":
                return reflection.response(f"{_OPEN.format('VimCLIInfo')}{_INFO}</obj>")
            case "EsxCLI.system.module.parameters.list":
                return self._list(call, given)
            case "EsxCLI.system.module.parameters.set":
                return self._set(call, given)
            case unknown:
                return reflection.fault(f"{escape(unknown)} is not simulated")

    def _modules(self) -> HostKernelModuleSystem:
        found: HostKernelModuleSystem = self.world.get(f"kernelModuleSystem-{self.host.number}")
        return found

    def _list(self, call: Call, given: Mapping[str, str]) -> Any:
        configured = self._modules().QueryConfiguredModuleOptionString(call, given.get("module", ""))
        told = dict.fromkeys(KNOWN, "") | dict(option.partition("=")[::2] for option in configured.split())
        rows = "".join(
            '<DataObject xsi:type="VimEsxCLIsystemmoduleparameterslistModuleParameter">'
            f"<Description></Description><Name>{escape(name)}</Name><Type>charp</Type><Value>{escape(value)}</Value>"
            "</DataObject>"
            for name, value in told.items()
        )
        return reflection.response(f"{_OPEN.format('ArrayOfDataObject')}{rows}</obj>")

    def _set(self, call: Call, given: Mapping[str, str]) -> Any:
        self._modules().UpdateModuleOptionString(call, given.get("module", ""), given.get("parameterstring", ""))
        return reflection.response(f"{_OPEN.format('xsd:boolean')}true</obj>")


def _text(value: str) -> str:
    """The text in `<module>nvidia</module>`."""
    return ElementTree.fromstring(value).text or ""  # noqa: S314  the test's own request, to its own simulator
