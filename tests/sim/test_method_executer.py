"""esxcli over SOAP: it and the kernel module system are two ways to one string."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from pyVmomi import VmomiSupport, vim

from gpuops.sim.vcenter.authority import READ_ONLY
from tests.sim.lab import Lab, served


@pytest.fixture
def lab() -> Iterator[Lab]:
    with served() as lab:
        yield lab


def esxcli(lab: Lab, command: str, **arguments: str) -> Any:
    """The SoapResult of an esxcli command, asked for as govc asks."""
    kind = VmomiSupport.GetWsdlType("urn:vim25", "ReflectManagedMethodExecuter")
    argument = VmomiSupport.GetWsdlType("urn:vim25", "ReflectManagedMethodExecuterSoapArgument")
    host, stub = lab.host("esx-01.lab"), lab.si._stub
    executer = stub.InvokeMethod(host, kind._methodInfo["RetrieveManagedMethodExecuter"], ())
    given = [argument(name=name, val=f"<{name}>{text}</{name}>") for name, text in arguments.items()]
    return stub.InvokeMethod(executer, kind._methodInfo["ExecuteSoap"], ("any", "urn:vim25/5.0", command, given))


def listed(lab: Lab) -> dict[str, str]:
    told = esxcli(lab, "vim.EsxCLI.system.module.parameters.list", module="nvidia")
    name, value = "{urn:vim25}Name", "{urn:vim25}Value"
    return {row.findtext(name, ""): row.findtext(value, "") for row in ElementTree.fromstring(told.response)}


def test_what_one_sets_the_other_shows(lab: Lab) -> None:
    system = lab.host("esx-01.lab").configManager.kernelModuleSystem
    assert listed(lab) == {"NVreg_RegistryDwords": "", "NVreg_RegistryDwordsPerDevice": ""}
    system.UpdateModuleOptionString("nvidia", "a=1 NVreg_RegistryDwords=RmPVMRL=0x01;B=2")
    assert listed(lab) == {"NVreg_RegistryDwords": "RmPVMRL=0x01;B=2", "NVreg_RegistryDwordsPerDevice": "", "a": "1"}
    esxcli(lab, "vim.EsxCLI.system.module.parameters.set", module="nvidia", parameterstring="c=&lt;3&gt;")
    assert system.QueryConfiguredModuleOptionString("nvidia") == "c=<3>"
    assert {module.name: module.optionString for module in system.QueryModules()}["nvidia"] == ""
    assert [entry.method for entry in lab.world.ledger] == ["UpdateModuleOptionString", "ExecuteSoap"]


def test_what_is_not_simulated_is_an_error_of_esxcli(lab: Lab) -> None:
    told = esxcli(lab, "vim.EsxCLI.hardware.pci.list")
    assert (told.response, told.fault.faultMsg) == (None, "EsxCLI.CLIFault.summary")
    assert "hardware.pci.list is not simulated" in told.fault.faultDetail


def test_it_needs_the_privilege_of_the_calls_it_stands_for(lab: Lab) -> None:
    [user] = lab.world.sessions.passwords
    lab.world.authority.permit(user, READ_ONLY)
    with pytest.raises(vim.fault.NoPermission):
        esxcli(lab, "vim.EsxCLI.system.module.parameters.set", module="nvidia", parameterstring="")
