"""Which GPU an instance of a counter is: by its address, else by order, else unknown."""

from __future__ import annotations

from dataclasses import replace

from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.model.devices.gpu import Passthrough, PciAddress, PhysicalGpu
from gpuops.model.vcenter.host import Host

FIRST, SECOND = PciAddress(0, 0x3B, 0, 0), PciAddress(0, 0x5E, 0, 0)
HOST = Host("host-1", "esx-01", gpus=tuple(PhysicalGpu(each, "NVIDIA A40", 0x10DE, 0x2235) for each in (FIRST, SECOND)))


def test_an_address_is_that_gpu_and_one_that_the_host_does_not_have_is_none() -> None:
    gpu_by_instance = gpus_of_instances(("0000:5e:00.0", "0000:3b:00.0", "0000:99:00.0"), HOST)
    assert gpu_by_instance == {"0000:5e:00.0": SECOND, "0000:3b:00.0": FIRST}
    assert gpus_of_instances(("0000:99:00.0", "0000:9a:00.0"), HOST) == {}, "as many as it has, and others all the same"


def test_other_words_are_gpus_in_the_order_of_their_numbers() -> None:
    assert gpus_of_instances(("gpu-10", "gpu-9"), HOST) == {"gpu-9": FIRST, "gpu-10": SECOND}
    gpu_by_instance = gpus_of_instances(("000:094:00.0", "000:059:00.0"), HOST)
    assert gpu_by_instance == {"000:059:00.0": FIRST, "000:094:00.0": SECOND}


def test_which_of_two_cannot_be_told() -> None:
    assert gpus_of_instances(("gpu-1",), HOST) == {}
    assert gpus_of_instances((), HOST) == {}


def test_the_counter_of_the_host_as_a_whole_is_no_gpu() -> None:
    assert gpus_of_instances(("", "gpu-0", "gpu-1"), HOST) == {"gpu-0": FIRST, "gpu-1": SECOND}


def test_a_gpu_that_is_given_to_vms_as_a_whole_has_no_counters() -> None:
    passed_through = replace(HOST.gpus[0], passthrough=Passthrough(capable=True, enabled=True, active=True))
    assert gpus_of_instances(("gpu-1",), replace(HOST, gpus=(passed_through, HOST.gpus[1]))) == {"gpu-1": SECOND}
