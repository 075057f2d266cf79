"""The lab with VMs that have devices of every kind: an SR-IOV network card, a whole GPU and a vGPU in one VM."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

CARD: Final = "SR-IOV network adapter 2"
"""As vCenter labels the card of `mixed` and of `carded`."""
ADDED: Final = """
  - {<<: *direct, name: mixed, count: 1, hardware_version: 21,
     devices: [{sriov: "0000:31:00.0"}, {direct_path: "0000:5e:00.0"}, {vgpu: nvidia_a40-8q}]}
  - {<<: *ml, name: carded, count: 1, "on": esx-02.lab, hardware_version: 21, devices: [{sriov: "0000:31:00.1"}]}
"""


PORTS: Final = """        policy: consolidation
        ports:
          - {at: "0000:31:00.0", node: 0, functions: 1}
          - {at: "0000:31:00.1", node: 0, functions: 1}
"""
"""The ports of the network card of esx-02.lab have a virtual function each."""


def mixed_lab(folder: Path) -> str:
    """The name of the scenario: `lab`, and `mixed` with all three, and `carded` with the network card alone."""
    lab = files("gpuops.sim").joinpath("scenarios", "lab.yaml").read_text(encoding="utf-8")
    path = folder / "mixed.yaml"
    path.write_text(lab.replace("        policy: consolidation\n", PORTS).rstrip() + ADDED, encoding="utf-8")
    return str(path)
