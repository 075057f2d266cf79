"""The versions known here are pyVmomi's own, and reading needs no pyVmomi."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pyVmomi import VmomiSupport

from gpuops.plan.core.versions import version_numbers
from gpuops.sim.core.fragments import resolve
from gpuops.vsphere.reading.bulk import reader
from gpuops.vsphere.transport.wire import KNOWN


def test_the_known_versions_are_pyvmomis_newest_first() -> None:
    wires = [key.removeprefix("vim25/") for key in VmomiSupport.versionMap if key.startswith("vim25/")]
    numbered = [wire for wire in wires if re.fullmatch(r"\d+(\.\d+)+", wire) and version_numbers(wire) >= (6, 5)]
    assert list(KNOWN) == sorted(numbered, key=version_numbers, reverse=True)


@pytest.mark.parametrize("version", KNOWN)
def test_a_read_asks_for_no_property_that_the_version_lacks(version: str) -> None:
    paths: dict[str, tuple[str, ...]] = {
        "HostSystem": reader.HOST + reader.HOST_DEVICES,
        "VirtualMachine": reader.VM + reader.VM_DETAIL,
        "ClusterComputeResource": reader.CLUSTER,
        "Datastore": reader.DATASTORE,
        "Task": reader.TASK,
    }
    for kind, property_names in paths.items():
        for path in reader.supported_paths(property_names, version):
            resolve(kind, path, VmomiSupport.versionMap[f"vim25/{version}"])


def test_the_reading_side_is_imported_without_pyvmomi() -> None:
    probe = "import sys, gpuops.vsphere.connection; print('pyVmomi' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, encoding="utf-8", check=True)
    assert process.stdout.strip() == "False"
