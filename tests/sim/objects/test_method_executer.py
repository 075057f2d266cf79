"""esxcli over SOAP: it and the kernel module system are two ways to one string."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from pyVmomi import VmomiSupport, vim

from gpuops.sim.vcenter.authority import READ_ONLY
from tests.sim.lab import Lab


def esxcli(lab: Lab, command: str, host: str = "esx-01.lab", **arguments: str) -> Any:
    """The SoapResult of an esxcli command, asked for as govc asks."""
    kind = VmomiSupport.GetWsdlType("urn:vim25", "ReflectManagedMethodExecuter")
    argument = VmomiSupport.GetWsdlType("urn:vim25", "ReflectManagedMethodExecuterSoapArgument")
    stub = lab.si._stub
    executer = stub.InvokeMethod(lab.host(host), kind._methodInfo["RetrieveManagedMethodExecuter"], ())
    soap_arguments = [argument(name=name, val=f"<{name}>{text}</{name}>") for name, text in arguments.items()]
    return stub.InvokeMethod(
        executer, kind._methodInfo["ExecuteSoap"], ("any", "urn:vim25/5.0", command, soap_arguments)
    )


def list_module_options(lab: Lab) -> dict[str, str]:
    reply = esxcli(lab, "vim.EsxCLI.system.module.parameters.list", module="nvidia")
    name, value = "{urn:vim25}Name", "{urn:vim25}Value"
    return {row.findtext(name, ""): row.findtext(value, "") for row in ElementTree.fromstring(reply.response)}


def test_what_one_sets_the_other_shows(lab: Lab) -> None:
    system = lab.host("esx-01.lab").configManager.kernelModuleSystem
    assert list_module_options(lab) == {"NVreg_RegistryDwords": "", "NVreg_RegistryDwordsPerDevice": ""}
    system.UpdateModuleOptionString("nvidia", "a=1 NVreg_RegistryDwords=RmPVMRL=0x01;B=2")
    assert list_module_options(lab) == {
        "NVreg_RegistryDwords": "RmPVMRL=0x01;B=2",
        "NVreg_RegistryDwordsPerDevice": "",
        "a": "1",
    }
    esxcli(lab, "vim.EsxCLI.system.module.parameters.set", module="nvidia", parameterstring="c=&lt;3&gt;")
    assert system.QueryConfiguredModuleOptionString("nvidia") == "c=<3>"
    assert {module.name: module.optionString for module in system.QueryModules()}["nvidia"] == ""
    assert [change.method for change in lab.world.ledger] == ["UpdateModuleOptionString", "ExecuteSoap"]


def test_what_is_not_simulated_is_an_error_of_esxcli(lab: Lab) -> None:
    reply = esxcli(lab, "vim.EsxCLI.hardware.trustedboot.get")
    assert (reply.response, reply.fault.faultMsg) == (None, "EsxCLI.CLIFault.summary")
    assert "hardware.trustedboot.get is not simulated" in reply.fault.faultDetail
    reply = esxcli(lab, "vim.CLIInfo.FetchCLIInfo", typeName="vim.EsxCLI.hardware.trustedboot")
    assert "hardware.trustedboot is not simulated" in reply.fault.faultDetail


def rows(lab: Lab, command: str, host: str = "esx-01.lab") -> list[dict[str, str]]:
    """What a command lists: each object's values by name."""
    root = ElementTree.fromstring(esxcli(lab, f"vim.EsxCLI.{command}", host=host).response)
    objects = list(root) if command.endswith("list") else [root]
    return [{field.tag.removeprefix("{urn:vim25}"): field.text or "" for field in row} for row in objects]


@pytest.mark.long
def test_graphics_devices_are_those_of_the_graphics_stack_and_who_runs_on_them(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")
    lab.power_on("ml-07", "esx-01.lab")
    graphics_devices = {gpu.pciId: gpu for gpu in lab.host("esx-01.lab").config.graphicsInfo}
    device_rows = {row["Address"]: row for row in rows(lab, "graphics.device.list")}
    assert device_rows.keys() == graphics_devices.keys()
    for address, row in device_rows.items():
        assert row["DeviceName"] == graphics_devices[address].deviceName
        assert (row["MemorySizeinKB"], row["NumberofVMs"]) == (
            str(graphics_devices[address].memorySizeInKB),
            str(len(graphics_devices[address].vm)),
        )
        assert (row["VendorName"], row["ModuleName"]) == ("NVIDIA Corporation", "nvidia")
    assert {row["GraphicsType"] for row in device_rows.values()} == {"SharedPassthru"}
    assert any(row["NumberofVMs"] != "0" for row in device_rows.values())
    [host] = rows(lab, "graphics.host.get")
    assert host == {"DefaultGraphicsType": "SharedPassthru", "SharedPassthruAssignmentPolicy": "Performance"}
    assert rows(lab, "graphics.host.get", "esx-02.lab")[0]["SharedPassthruAssignmentPolicy"] == "Consolidation"
    stats = {row["Address"]: row for row in rows(lab, "graphics.device.stats.list")}
    assert stats.keys() == graphics_devices.keys()
    assert {row["DriverVersion"] for row in stats.values()} == {
        lab.world.get(lab.host("esx-01.lab")).state.driver_version
    }


@pytest.mark.long
def test_pci_devices_say_whose_they_are_now_and_after_a_reboot(lab: Lab) -> None:
    hardware = {device.id: device for device in lab.host("esx-02.lab").hardware.pciDevice}
    passthrough = {gpu.id: gpu for gpu in lab.host("esx-02.lab").config.pciPassthruInfo}
    owners = set()
    device_rows = rows(lab, "hardware.pci.list", "esx-02.lab")
    assert [row["Address"] for row in device_rows] == list(hardware)
    for row in device_rows:
        device = hardware[row["Address"]]
        assert int(row["Bus"], 16) == device.bus & 0xFF
        assert (int(row["VendorID"], 16), int(row["DeviceID"], 16)) == (
            device.vendorId & 0xFFFF,
            device.deviceId & 0xFFFF,
        )
        active = passthrough[device.id].passthruActive
        assert row["CurrentOwner"] == ("VM Passthru" if active else "VMkernel")
        assert row["PassthruCapable"] == str(passthrough[device.id].passthruCapable).lower()
        owners.add((row["CurrentOwner"], row["ModuleName"]))
    assert owners == {
        ("VMkernel", "nmlx5_core"),
        ("VMkernel", "None"),
        ("VMkernel", "nvidia"),
        ("VM Passthru", "pciPassthru"),
    }


def test_packages_and_modules_are_what_the_managers_tell(lab: Lab) -> None:
    managers = lab.host("esx-01.lab").configManager
    packages = {installed.name: installed.version for installed in managers.imageConfigManager.fetchSoftwarePackages()}
    assert {row["Name"]: row["Version"] for row in rows(lab, "software.vib.list")} == packages
    assert {row["AcceptanceLevel"] for row in rows(lab, "software.vib.list")} == {"VMwareAccepted", "VMwareCertified"}
    modules = [installed.name for installed in managers.kernelModuleSystem.QueryModules()]
    assert [row["Name"] for row in rows(lab, "system.module.list")] == modules
    assert {(row["IsLoaded"], row["IsEnabled"]) for row in rows(lab, "system.module.list")} == {("true", "true")}


def test_it_needs_the_privilege_of_the_calls_it_stands_for(lab: Lab) -> None:
    [user] = lab.world.sessions.passwords
    lab.world.authority.permit(user, READ_ONLY)
    with pytest.raises(vim.fault.NoPermission):
        esxcli(lab, "vim.EsxCLI.system.module.parameters.set", module="nvidia", parameterstring="")
