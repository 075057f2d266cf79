"""`observe --once; diagnose` on simulated scenarios: nothing healthy is accused, what slows a VM down is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.vm_state import Slowdown
from tests.cli.conftest import Lab, lab_on

WITH_VGPUS: Final = (
    "lab",
    "vdi",
    "scattered",
    "training",
    "stacks",
    "accelerators",
    "supervisor",
    "fleet:hosts=20,vms=80",
)
FAULTS: Final = {
    "vdi-091": Slowdown.CPU_READY,
    "vdi-002": Slowdown.MEMORY_RECLAIMED,
    "vdi-003": Slowdown.DATASTORE,
    "vdi-004": Slowdown.NETWORK,
    "vdi-093": Slowdown.FRAME_BUFFER,
    "vdi-034": Slowdown.NOISY_NEIGHBOUR,
    "vdi-095": Slowdown.SCHEDULER,
    "vdi-006": Slowdown.REMOTE_NUMA,
    "vdi-007": Slowdown.DRIVER,
    "vdi-010": Slowdown.CPU_READY,
}
"""What is put into each VM: ten faults, each that vCenter's counters show, CPU ready in two."""
AT_WORK_MHZ: Final = 1400


@contextmanager
def observing_lab(scenario: str, tmp_path: Path, home: Path, faults: Mapping[str, Slowdown]) -> Iterator[Lab]:
    with start(scenario, clock="stepped") as server:
        put_in(server, faults)
        with lab_on(server, tmp_path, home) as lab:
            observe = lab.run("observe", "--once")
            assert observe.exit_code == 0, observe.output
            yield lab


def put_in(server: SimServer, faults: Mapping[str, Slowdown]) -> None:
    with server.world.lock:
        for vm in server.world.by_type("VirtualMachine"):
            component = faults.get(vm.state.name)
            if component is None:
                continue
            vm.state.slowed_by = component
            vm.state.past = None
            vm.state.cpu_usage_mhz = AT_WORK_MHZ
            [seat] = vm.state.seats
            host = vm.host().state
            if component is Slowdown.REMOTE_NUMA:
                node = next(gpu.numa_node for gpu in host.gpus if gpu.pci_id == seat.pci_id)
                vm.state.extra_config = (*vm.state.extra_config, ("numa.nodeAffinity", str(1 - (node or 0))))
            if component is Slowdown.SCHEDULER:  # fixed share, of the host
                host.module_options = host.loaded_module_options = "NVreg_RegistryDwords=RmPVMRL=0x11"


def beside_the_noisy_one(server: SimServer) -> set[str]:
    """The VMs on the GPU of the VM that has a noisy neighbour."""
    vms = [vm for vm in server.world.by_type("VirtualMachine") if vm.state.seats]
    full = {(vm.state.host, vm.state.seats[0].pci_id) for vm in vms if FAULTS.get(vm.state.name) == "noisy-neighbour"}
    return {vm.state.name for vm in vms if (vm.state.host, vm.state.seats[0].pci_id) in full}


def diagnoses_by_vm(lab: Lab) -> dict[str, dict[str, Any]]:
    diagnose = lab.run("diagnose", "-o", "json")
    if diagnose.exit_code == 2:
        assert "no VM with a vGPU is selected" in diagnose.stderr or "less than half an hour of" in diagnose.stderr, (
            diagnose.output
        )
        return {}
    assert diagnose.exit_code == 0, diagnose.output
    return {vm["vm"]: vm for vm in json.loads(diagnose.stdout)["vms"]}


def accused_components(vms: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    firsts = {name: vm["suspects"][0]["component"] for name, vm in vms.items() if vm["suspects"]}
    return {name: component for name, component in firsts.items() if component != "none"}


@pytest.mark.long
@pytest.mark.parametrize("scenario", WITH_VGPUS)
def test_nothing_healthy_is_accused(scenario: str, tmp_path: Path, clean: Path) -> None:
    with observing_lab(scenario, tmp_path, clean, {}) as lab:
        vms = diagnoses_by_vm(lab)
        assert accused_components(vms) == {}
        assert [vm["contradictions"] for vm in vms.values() if vm["contradictions"]] == []


@pytest.mark.long
def test_of_ten_faults_at_least_eight_are_named_first_and_nothing_healthy_is_accused(
    tmp_path: Path, clean: Path
) -> None:
    with observing_lab("vdi", tmp_path, clean, FAULTS) as lab:
        first = accused_components(diagnoses_by_vm(lab))
        beside = beside_the_noisy_one(lab.server)
    named = {name for name, component in FAULTS.items() if first.get(name) == component}
    assert len(named) >= 8, {name: (component, first.get(name)) for name, component in FAULTS.items()}
    healthy = {name: component for name, component in first.items() if name not in FAULTS}
    assert healthy.keys() <= beside, "a VM on a full GPU gets less than it wants"
    assert set(healthy.values()) <= {"noisy-neighbour"}


def test_of_the_scenario_lab_nothing_is_accused_and_what_slows_a_desktop_down_is_named(
    tmp_path: Path, clean: Path
) -> None:
    with observing_lab("lab", tmp_path, clean, {"vdi-05": Slowdown.DATASTORE}) as lab:
        assert accused_components(diagnoses_by_vm(lab)) == {"vdi-05": "datastore"}
    diagnoses = [
        json.loads(path.read_text(encoding="utf-8")) for path in (default_state_dir() / "diagnosis").rglob("d-*.json")
    ]
    facts = [diagnosis["case"]["facts"] for diagnosis in diagnoses]
    assert {(facts_of_vm["scheduler"], facts_of_vm["host_driver"]) for facts_of_vm in facts} == {("best-effort", 550)}
