"""A port of a host's network card: where it is, its RDMA device, and its virtual functions (SR-IOV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.gpu import PciAddress

MOST_FUNCTIONS: Final = 64
"""Virtual functions that a port can be divided into."""
_FUNCTIONS_OF_SLOT: Final = 8


@dataclass(slots=True)
class NetworkPort:
    """A physical network adapter; `functions` are in force, `next_functions` are what the host will have."""

    pci_id: str
    numa_node: int | None = 0
    """None = it is beside none."""
    speed_mbit: int = 25_000
    link: bool = True
    rdma: bool = False
    """Whether it has an RDMA device, which speaks RoCE v1 and v2."""
    max_functions: int = 0
    """0 = it has no SR-IOV."""
    functions: int = 0
    next_functions: int = 0

    def function_ids(self) -> list[str]:
        """The PCI addresses of its virtual functions: on its bus, each port from a slot of its own on."""
        port = PciAddress.parse(self.pci_id)
        first = _FUNCTIONS_OF_SLOT + MOST_FUNCTIONS * port.function
        return [
            str(PciAddress(port.segment, port.bus, *divmod(first + number, _FUNCTIONS_OF_SLOT)))
            for number in range(self.functions)
        ]
