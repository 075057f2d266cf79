"""Pins over the wire: `pciPassthruN.cfg.gpu-pci-id` has the N of the device's key, whatever other devices there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.api import Site, run
from gpuops.clock import wall_clock
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.core.plan import Request, Verdict
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import VmState
from gpuops.vsphere.connection import Connection
from tests.sim.operations.mixed import mixed_lab
from tests.wire.conftest import target_of

PROFILE = "nvidia_a40-8c"


class Pins:
    """A site on the lab with SR-IOV cards, and what its simulated vCenter holds of a VM."""

    def __init__(self, site: Site, server: SimServer) -> None:
        self.site, self.server = site, server

    def apply(self, request: Request) -> None:
        report = run(request, self.site, apply=True)
        assert report.plan.feasible, "; ".join(map(str, report.plan.rejections))
        assert all(outcome.verdict is Verdict.DONE for outcome in report.outcomes), report.outcomes

    def pins(self, name: str) -> dict[str, str]:
        return {key: value for key, value in self.state(name).extra_config if key.endswith("gpu-pci-id")}

    def gpus(self, name: str) -> dict[str, int]:
        """How many vGPUs of the VM run on each GPU."""
        addresses = [seat.pci_id for seat in self.state(name).seats]
        return {address: addresses.count(address) for address in addresses}

    def keys(self, name: str) -> list[int]:
        return sorted(device.key for device in self.state(name).devices)

    def state(self, name: str) -> VmState:
        return self._vm(name).state

    def _vm(self, name: str) -> VmEntity:
        return next(vm for vm in self.server.world.by_type("VirtualMachine") if vm.name == name)

    def change(self, name: str, **fields: object) -> None:
        """What an admin changes in the vSphere Client."""
        vm = self._vm(name)
        for field, value in fields.items():
            setattr(vm.state, field, value)
        vm.state.change += 1
        vm.touch("config", "summary")


@pytest.fixture
def pins(tmp_path: Path) -> Iterator[Pins]:
    with SimServer(build(mixed_lab(tmp_path))) as server, Connection(target_of(server)) as connection:
        yield Pins(Site(connection, tmp_path, wall_clock), server)
        assert server.world.bugs == []


def attach_on_one_node(name: str, count: int = 1, **options: object) -> Attach:
    return Attach(name, profile=PROFILE, count=count, numa=NumaPolicy.REQUIRED, **options)  # type: ignore[arg-type]


def test_the_vgpu_of_a_vm_with_an_sriov_card_is_bound_to_its_gpu(pins: Pins) -> None:
    pins.apply(attach_on_one_node("carded", power=PowerPolicy.ON))
    [(key, address)] = pins.pins("carded").items()
    assert pins.keys("carded") == [13000, 13031]
    assert key == "pciPassthru0.cfg.gpu-pci-id"
    assert pins.gpus("carded") == {address: 1}


@pytest.mark.long
def test_a_pin_stays_with_its_vgpu_when_another_one_goes_and_the_next_takes_the_gap(pins: Pins) -> None:
    pins.apply(attach_on_one_node("carded", 2))
    bound = pins.pins("carded")
    assert bound.keys() == {"pciPassthru0.cfg.gpu-pci-id", "pciPassthru1.cfg.gpu-pci-id"}
    pins.change("carded", devices=tuple(device for device in pins.state("carded").devices if device.key != 13000))
    pins.apply(attach_on_one_node("carded", 2))
    assert (pins.keys("carded"), pins.pins("carded")) == ([13000, 13001, 13031], bound)
    pins.apply(Detach("carded", profile=PROFILE, count=1))
    assert (pins.keys("carded"), list(pins.pins("carded"))) == ([13000, 13031], ["pciPassthru0.cfg.gpu-pci-id"])


@pytest.mark.long
def test_a_pin_that_waits_for_its_device_binds_it_and_the_plan_goes_by_it(pins: Pins) -> None:
    pins.change("carded", extra_config=(("pciPassthru0.cfg.gpu-pci-id", "0000:af:00.0"),))
    pins.apply(Attach("carded", profile=PROFILE, power=PowerPolicy.ON))
    assert pins.pins("carded") == {"pciPassthru0.cfg.gpu-pci-id": "0000:af:00.0"}
    assert pins.gpus("carded") == {"0000:af:00.0": 1}


@pytest.mark.long
def test_a_pin_that_waits_for_its_device_and_names_no_gpu_is_refused(pins: Pins) -> None:
    pins.change("carded", extra_config=(("pciPassthru0.cfg.gpu-pci-id", "0000:99:00.0"),))
    report = run(Attach("carded", profile=PROFILE), pins.site, apply=True)
    refusals = [str(refusal) for refusal in report.plan.rejections]
    assert "esx-02.lab: has no GPU 0000:99:00.0, which carded is pinned to" in refusals


@pytest.mark.long
def test_the_pin_of_a_vgpu_goes_with_it_where_another_device_takes_its_number(pins: Pins) -> None:
    pins.apply(attach_on_one_node("carded"))
    assert pins.pins("carded")
    pins.apply(Attach("carded", device=("0000:5e:00.0",), replace=PROFILE))
    assert (pins.keys("carded"), pins.pins("carded")) == ([13000, 13031], {})


@pytest.mark.long
def test_a_vgpu_that_got_another_key_than_expected_is_not_started(pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.sim.state.vm_state.pci_slot", lambda used_keys, *, sriov: (13005, 23))
    report = run(attach_on_one_node("carded", power=PowerPolicy.ON), pins.site, apply=True)
    first, *later = report.outcomes
    assert (first.verdict, {outcome.verdict for outcome in later}) == (Verdict.UNKNOWN, {Verdict.SKIPPED})
    assert first.reason == (
        "vCenter gave its devices other keys than expected: pciPassthru0.cfg.gpu-pci-id binds no device of it"
    )
    assert pins.gpus("carded") == {}
    monkeypatch.undo()
    pins.apply(attach_on_one_node("carded", power=PowerPolicy.ON))  # the same again pins it by the key that it has
    assert pins.gpus("carded") == {pins.pins("carded")["pciPassthru5.cfg.gpu-pci-id"]: 1}
