"""The versions known here are pyVmomi's own, and reading needs no pyVmomi."""

from __future__ import annotations

import re
import subprocess
import sys

from pyVmomi import VmomiSupport

from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere.transport.api_version import KNOWN


def test_the_known_versions_are_pyvmomis_newest_first() -> None:
    wires = [key.removeprefix("vim25/") for key in VmomiSupport.versionMap if key.startswith("vim25/")]
    numbered = [wire for wire in wires if re.fullmatch(r"\d+(\.\d+)+", wire) and version_numbers(wire) >= (6, 7)]
    assert list(KNOWN) == sorted(numbered, key=version_numbers, reverse=True)


def test_the_reading_side_is_imported_without_pyvmomi() -> None:
    probe = "import sys, gpuops.vsphere.connection; print('pyVmomi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "False"
