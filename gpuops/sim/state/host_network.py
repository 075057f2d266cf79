"""What the simulated vCenter keeps of the networking of a host, and of the ports of its network cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpuops.model.devices.gpu import PciAddress

MANAGEMENT: Final = "Management Network"


@dataclass(frozen=True, slots=True)
class VirtualSwitch:
    """A standard switch; `nics` are its uplinks by device name."""

    name: str
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PortGroup:
    """A port group of a standard switch."""

    name: str
    switch: str


@dataclass(frozen=True, slots=True)
class KernelAdapter:
    """A VMkernel adapter; one without `ip` has the host's management address.

    On a distributed switch `group` is the key of its port group, and it has the uuid of the switch and the key of its
    port.
    """

    device: str
    group: str
    ip: str = ""
    mtu: int = 1500
    services: tuple[str, ...] = ()
    switch: str = ""
    port: str = ""


@dataclass(frozen=True, slots=True)
class ProxySwitch:
    """A host's part in a distributed switch, named by moid: its physical adapters, and the keys of its uplink ports."""

    switch: str
    nics: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """All networking of one host."""

    switches: tuple[VirtualSwitch, ...]
    groups: tuple[PortGroup, ...]
    adapters: tuple[KernelAdapter, ...]
    proxies: tuple[ProxySwitch, ...] = ()

    def proxy(self, switch: str) -> ProxySwitch | None:
        return next((proxy for proxy in self.proxies if proxy.switch == switch), None)

    def with_proxy(self, switch: str, proxy: ProxySwitch | None) -> HostNetwork:
        """The same with this part in a distributed switch, or with none."""
        other_proxies = tuple(proxy_switch for proxy_switch in self.proxies if proxy_switch.switch != switch)
        return replace(self, proxies=other_proxies if proxy is None else (*other_proxies, proxy))


def installed_network(networks: tuple[str, ...]) -> HostNetwork:
    """One switch, the management network, and a port group for each of these networks.

    Its uplink is the first physical adapter, as after an installation (VMware, ESXi Installation and Setup).
    """
    switch = VirtualSwitch("vSwitch0", ("vmnic0",))
    groups = tuple(PortGroup(name, switch.name) for name in (*networks, MANAGEMENT))
    return HostNetwork((switch,), groups, (KernelAdapter("vmk0", MANAGEMENT, services=("management", "vmotion")),))


MOST_FUNCTIONS: Final = 64
"""Virtual functions that a port can be divided into."""
_FUNCTIONS_OF_SLOT: Final = 8


@dataclass(slots=True)
class NetworkPort:
    """A physical network adapter; `functions` are in force, `next_functions` are what the host will have."""

    pci_id: str
    numa_node: int | None = 0
    """None = it is near none of them."""
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
