"""govc sees and attaches devices of our simulated vCenter that are no NVIDIA GPU, and takes none of them for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpuops.sim.server import SimServer, start
from tests.peers.conftest import _endpoint
from tests.peers.processes import Endpoint, Govc, Refusal

pytestmark = pytest.mark.peer


@pytest.fixture
def accelerators() -> Iterator[SimServer]:
    with start("accelerators") as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture
def ask(accelerators: SimServer, govc: Callable[[Endpoint], Govc]) -> Govc:
    return govc(_endpoint(accelerators))


def test_device_pci_ls_offers_those_in_passthrough(ask: Govc) -> None:
    _, *rows = ask.lines("device.pci.ls", "-vm=fpga-02")
    assert sorted(row.split()[1] for row in rows) == [
        "0000:5e:00.0", "0000:5e:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:86:00.0", "0000:af:00.0",
    ]  # fmt: skip
    text = "\n".join(rows)
    assert all(name in text for name in ("Arria 10", "MI355X", "ConnectX-6 Dx"))


def test_gpu_host_info_lists_nvidias_alone(ask: Govc) -> None:
    gpus_by_host = {
        host: ask.json("gpu.host.info", f"-host={host}")["devices"] for host in ("esx-01.acc", "esx-02.acc")
    }
    assert {host: [gpu["pciId"] for gpu in gpus] for host, gpus in gpus_by_host.items()} == {
        "esx-01.acc": ["0000:3b:00.0"],
        "esx-02.acc": ["0000:3b:00.0"],
    }


def test_an_fpga_that_govc_attaches_starts_once(ask: Govc) -> None:
    ask("device.pci.add", "-vm=fpga-02", "0000:af:00.0")
    (device,) = ask.json("device.info", "-vm=fpga-02", "pcipassthrough-*")["devices"]
    backing = device["backing"]
    assert (backing["id"], backing["deviceId"], backing["vendorId"] & 0xFFFF) == ("0000:af:00.0", "9c4", 0x8086)
    with pytest.raises(Refusal, match="memory"):
        ask("vm.power", "-on", "fpga-02")
    ask("vm.change", "-vm=fpga-02", "-memory-pin=true")
    ask("vm.power", "-on", "fpga-02")
    ask("device.pci.add", "-vm=old-01", "0000:af:00.0")
    ask("vm.change", "-vm=old-01", "-memory-pin=true")
    with pytest.raises(Refusal, match="already in use"):
        ask("vm.power", "-on", "old-01")
