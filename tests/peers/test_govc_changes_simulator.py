"""govc changes our simulated vCenter: devices, power, DRS; what it prints, and what the ledger then says.

The scenario is `lab`; every test has its own, with virtual time, so a two-minute suspend takes no time.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.sim.server import SimServer
from tests.peers.processes import Govc, Refusal

pytestmark = pytest.mark.peer

PROFILE = "grid_a100-3-20c"


def methods(lab: SimServer, machine: str) -> list[str]:
    """The effects the ledger has for an object, in order."""
    return [change.method for change in lab.world.ledger if change.name == machine]


def power(ask: Govc, machine: str) -> str:
    (machine_info,) = ask.json("vm.info", machine)["virtualMachines"]
    return str(machine_info["runtime"]["powerState"])


def passthrough(ask: Govc, machine: str) -> list[str]:
    """Names of the passthrough devices of a VM, as `device.ls` prints them."""
    return [line.split()[0] for line in ask.lines("device.ls", f"-vm={machine}") if "VirtualPCIPassthrough" in line]


def test_gpu_vm_add_and_remove_change_the_hardware(lab: SimServer, ask: Govc) -> None:
    assert ask("gpu.vm.add", "-vm=ml-07", f"-profile={PROFILE}") == ""
    assert f"Summary: NVIDIA GRID vGPU {PROFILE}" in ask("gpu.vm.info", "-vm=ml-07")
    assert passthrough(ask, "ml-07") == ["pcipassthrough-13000"]
    ask("gpu.vm.remove", "-vm=ml-07")
    assert passthrough(ask, "ml-07") == []
    assert "Summary" not in ask("gpu.vm.info", "-vm=ml-07")
    assert methods(lab, "ml-07") == ["ReconfigVM_Task", "ReconfigVM_Task"]


def test_two_vgpus_get_keys_of_their_own(ask: Govc) -> None:
    for _ in range(2):
        ask("gpu.vm.add", "-vm=ml-07", f"-profile={PROFILE}")
    assert passthrough(ask, "ml-07") == ["pcipassthrough-13000", "pcipassthrough-13001"]


def test_power_on_is_refused_until_the_memory_is_pinned(lab: SimServer, ask: Govc) -> None:
    ask("gpu.vm.add", "-vm=ml-07", f"-profile={PROFILE}")
    with pytest.raises(Refusal, match="memory reservation"):
        ask("vm.power", "-on", "ml-07")
    assert power(ask, "ml-07") == "poweredOff"
    ask("vm.change", "-vm=ml-07", "-memory-pin=true")
    assert ask("vm.power", "-on", "ml-07").rstrip().endswith("OK")
    assert power(ask, "ml-07") == "poweredOn"
    assert methods(lab, "ml-07") == ["ReconfigVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"]


def test_a_running_machine_takes_no_vgpu(ask: Govc) -> None:
    with pytest.raises(Refusal, match="must be powered off"):
        ask("gpu.vm.add", "-vm=vdi-01", "-profile=nvidia_a40-8q")


def test_a_third_instance_on_a_mig_gpu_goes_to_the_other_gpu_and_a_fifth_nowhere(ask: Govc) -> None:
    """Two A100 40 GB hold two 3g.20gb instances each."""
    ask("vm.change", "-vm=ml-07", "-memory-pin=true", "-m=16384")
    for _ in range(4):
        ask("gpu.vm.add", "-vm=ml-07", f"-profile={PROFILE}")
    assert ask("vm.power", "-on", "ml-07").rstrip().endswith("OK")
    with pytest.raises(Refusal, match=r"[Gg]raphics"):
        ask("vm.power", "-on", "ml-01")
    assert power(ask, "ml-01") == "poweredOff"


def test_suspend_frees_the_gpu_and_resume_takes_it_again(lab: SimServer, ask: Govc) -> None:
    def holders() -> int:
        (document,) = ask.documents("object.collect", "host/lab-cluster/esx-01.lab", "config.graphicsInfo")
        changes: list[Any] = document if isinstance(document, list) else document["changeSet"]
        graphics = changes[0]["val"]
        cards = graphics["_value"] if isinstance(graphics, dict) else graphics
        return sum(len(card.get("vm") or []) for card in cards)

    before = holders()
    ask("vm.power", "-suspend", "vdi-01")
    assert (power(ask, "vdi-01"), holders()) == ("suspended", before - 1)
    ask("vm.power", "-on", "vdi-01")
    assert (power(ask, "vdi-01"), holders()) == ("poweredOn", before)
    assert methods(lab, "vdi-01") == ["SuspendVM_Task", "PowerOnVM_Task"]


def test_power_off_and_the_states_that_refuse(ask: Govc) -> None:
    ask("vm.power", "-off", "vdi-02")
    assert power(ask, "vdi-02") == "poweredOff"
    with pytest.raises(Refusal, match=r"current state \(Powered off\)"):
        ask("vm.power", "-off", "vdi-02")
    with pytest.raises(Refusal, match=r"current state \(Powered off\)"):
        ask("vm.power", "-suspend", "vdi-02")


def test_a_machine_with_a_directpath_device_is_never_suspended(ask: Govc) -> None:
    ask("vm.power", "-on", "ml-03")
    with pytest.raises(Refusal):
        ask("vm.power", "-suspend", "ml-03")
    assert power(ask, "ml-03") == "poweredOn"


def test_device_pci_add_gives_a_directpath_device(lab: SimServer, ask: Govc) -> None:
    ask("device.pci.add", "-vm=ml-08", "0000:d8:00.0")
    (device,) = ask.json("device.info", "-vm=ml-08", "pcipassthrough-*")["devices"]
    backing = device["backing"]
    # vSphere wants the device id as hexadecimal text, without 0x
    assert (backing["id"], backing["deviceId"], backing["vendorId"]) == ("0000:d8:00.0", "26b9", 0x10DE)
    ask("device.pci.remove", "-vm=ml-08", "pcipassthrough-13000")
    assert passthrough(ask, "ml-08") == []
    assert methods(lab, "ml-08") == ["ReconfigVM_Task", "ReconfigVM_Task"]


def test_one_device_serves_one_running_machine(ask: Govc) -> None:
    ask("device.pci.add", "-vm=ml-08", "0000:5e:00.0")  # ml-03 names the same device
    ask("vm.change", "-vm=ml-08", "-memory-pin=true")
    ask("vm.power", "-on", "ml-03")
    with pytest.raises(Refusal):
        ask("vm.power", "-on", "ml-08")
    assert (power(ask, "ml-03"), power(ask, "ml-08")) == ("poweredOn", "poweredOff")


def test_extra_config_is_set_and_removed(ask: Govc) -> None:
    def extra() -> dict[str, str]:
        (machine,) = ask.json("vm.info", "-e", "ml-07")["virtualMachines"]
        return {option["key"]: option["value"] for option in machine["config"].get("extraConfig", [])}

    ask("vm.change", "-vm=ml-07", "-e=pciPassthru.use64bitMMIO=TRUE")
    assert extra()["pciPassthru.use64bitMMIO"] == "TRUE"
    ask("vm.change", "-vm=ml-07", "-e=pciPassthru.use64bitMMIO=")
    assert "pciPassthru.use64bitMMIO" not in extra()


def drs(ask: Govc) -> dict[str, Any]:
    """The cluster's DRS configuration."""
    (document,) = ask.documents("object.collect", "host/lab-cluster", "configurationEx")
    changes: list[Any] = document if isinstance(document, list) else document["changeSet"]
    return dict(changes[0]["val"]["drsConfig"])


def test_cluster_change_switches_drs(lab: SimServer, ask: Govc) -> None:
    ask("cluster.change", "-drs-enabled=false", "lab-cluster")
    assert drs(ask)["enabled"] is False
    ask("cluster.change", "-drs-enabled", "-drs-mode=manual", "-drs-vmotion-rate=4", "lab-cluster")
    assert (drs(ask)["enabled"], drs(ask)["defaultVmBehavior"], drs(ask)["vmotionRate"]) == (True, "manual", 4)
    assert methods(lab, "lab-cluster") == ["ReconfigureComputeResource_Task"] * 2


def test_events_and_tasks_tell_what_happened(ask: Govc) -> None:
    ask("gpu.vm.add", "-vm=ml-07", f"-profile={PROFILE}")
    with pytest.raises(Refusal):
        ask("vm.power", "-on", "ml-07")
    events = ask.lines("events", "-n=20", "vm/ml/ml-07")
    assert any("Reconfigured ml-07 on esx-01.lab in lab-dc" in line for line in events)
    tasks = ask.lines("tasks", "-n=20")
    reconfigured, refused = (next(line for line in tasks if kind in line) for kind in ("ReconfigVM", "PowerOnVM"))
    assert "success" in reconfigured
    assert "ml-07" in reconfigured
    assert "error" in refused


def test_esxcli_shows_and_sets_the_options_of_a_kernel_module(ask: Govc) -> None:
    esxcli = ("host.esxcli", "-host=esx-01.lab", "-hints=false", "system", "module", "parameters")
    policy = "RmPVMRL=0x01;Other=1"
    ask(*esxcli, "set", "-m", "nvidia", "-p", f"a=1 NVreg_RegistryDwords={policy}")
    listing = ask(*esxcli, "list", "-m", "nvidia")
    assert policy in listing
    with pytest.raises(Refusal, match=r"EsxCLI\.CLIFault\.summary"):
        ask("host.esxcli", "-host=esx-01.lab", "hardware", "trustedboot", "get")
