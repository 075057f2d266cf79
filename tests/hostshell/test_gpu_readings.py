"""How GPUs and vGPUs are, as the hosts' own nvidia-smi writes it: over real SSH, into the store of measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.api import Site, catalog_of
from gpuops.clock import wall_clock
from gpuops.errors import OutcomeUnknown, Refused
from gpuops.extras.diagnosis.diagnosing import read_cases
from gpuops.extras.observe.observing import observe
from gpuops.extras.observe.store import Measurements
from gpuops.hostshell import nvidia_smi as asking
from gpuops.hostshell.nvidia_smi import GPUS, GPUS_BEFORE_R535, VGPUS, NvidiaSmi, read_gpus, read_vgpus
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import (
    CPU_MHZ,
    SMI_GPU_COUNTERS,
    SMI_POWER_LIMIT,
    SMI_VM_COUNTERS,
    CounterSeries,
)
from gpuops.model.vcenter.host_settings import SmiGpu
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.hostshell.server import STAYS, Answer, ssh_server
from tests.hostshell.test_vgpu_listing import LISTING
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of

NAME = "esx-01.lab"
ROW = "00000000:C8:00.0, 35, 1410, 61, 2, 4, 16, 300.00, 0x0000000000000044"
USED = LISTING.replace(
    "GPU Instance ID                   : N/A\n        Placement ID                      : 16",
    "License Status                    : Licensed (Expiry: 2027-1-5 12:0:0 GMT)\n        FB Memory Usage\n"
    "            Used                          : 12 MiB\n        Utilization\n"
    "            Gpu                           : 35 %\n            Memory                        : 3 %\n"
    "            Encoder                       : 7 %",
)


def test_a_row_is_read_as_nvidia_smi_writes_it() -> None:
    gpu = PciAddress.parse("0000:c8:00.0")
    assert list(read_gpus(ROW)) == [SmiGpu(gpu, 35, 1410, 61, 2, 4, 16, 300, slowed_by_heat=True, slowed_by_power=True)]
    masks = {"0x0": (False, False), "0x1": (False, False), "0x20": (True, False), "0x80": (False, True)}
    for mask, slowed in {**masks, "[N/A]": (None, None), "Active": (None, None), "0xzz": (None, None)}.items():
        [reading] = read_gpus(ROW.replace("0x0000000000000044", mask))
        assert (reading.slowed_by_heat, reading.slowed_by_power) == slowed


@pytest.mark.parametrize("nothing", ["[N/A]", "N/A", "[Not Supported]", "-", "", "[Unknown Error]", "9" * 30, "-1"])
def test_what_a_gpu_does_not_tell_is_missing_and_no_zero(nothing: str) -> None:
    [reading] = read_gpus(f"00000000:C8:00.0, {', '.join([nothing] * 8)}")
    assert reading == SmiGpu(PciAddress.parse("0000:c8:00.0"))
    [first, second] = read_vgpus(USED.replace("35 %", nothing).replace("7 %", nothing), {})
    assert (first.utilization_percent, first.encoder_percent, first.licensed) == (None, None, True)
    assert (second.utilization_percent, second.encoder_percent, second.licensed) == (None, None, None)


def test_use_and_licence_of_a_vgpu_are_read() -> None:
    [first, _] = read_vgpus(USED, {})
    assert (first.utilization_percent, first.encoder_percent, first.licensed) == (35, 7, True)
    for word, licensed in (("Unlicensed (Restricted)", False), ("Licensed", True), ("Pending", None)):
        [first, _] = read_vgpus(USED.replace("Licensed (Expiry: 2027-1-5 12:0:0 GMT)", word), {})
        assert first.licensed is licensed


def answering(rows: str, listing: str = LISTING, known_command: str = GPUS) -> Answer:
    def answer(command: str) -> tuple[str, int]:
        if command == VGPUS:
            return listing, 0
        return (rows, 0) if command == known_command else ('Field "x" is not a valid field to query.\n', 2)

    return answer


@pytest.mark.long
def test_a_driver_before_r535_is_asked_by_the_older_name(tmp_path: Path) -> None:
    with ssh_server(tmp_path, NAME, answering(ROW, known_command=GPUS_BEFORE_R535)) as host:
        readings = NvidiaSmi(host.ssh).readings(NAME)
    assert (readings.gpus[0].temperature_c, [vgpu.vm_name for vgpu in readings.vgpus]) == (61, ["desk: 7", "ml-1"])
    assert host.asked == [GPUS, GPUS_BEFORE_R535, VGPUS]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("nonsense\n", "gpuops cannot read the output of nvidia-smi: 'nonsense'"),
        (f"{ROW}\n{ROW.replace('61', '62')}\n", "nvidia-smi: '00000000:C8:00.0, 35"),
        (f"{ROW}, 7\n", "cannot read"),
        (f'"{ROW}\n', "cannot read"),
    ],
)
def test_an_answer_that_is_none_is_refused(tmp_path: Path, rows: str, message: str) -> None:
    with ssh_server(tmp_path, NAME, answering(rows)) as host, pytest.raises(Refused, match=message):
        NvidiaSmi(host.ssh).readings(NAME)


def test_a_host_without_a_driver_is_refused_and_one_that_is_silent_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = "nvidia-smi failed with exit status 9: NVIDIA-SMI has failed"
    with ssh_server(tmp_path, NAME, lambda command: (failure[-21:], 9)) as host, pytest.raises(Refused, match=failure):
        NvidiaSmi(host.ssh).readings(NAME)
    monkeypatch.setattr(asking, "READING_S", 1.0)
    with (
        ssh_server(tmp_path, NAME, lambda command: ("", STAYS)) as host,
        pytest.raises(OutcomeUnknown, match="after 1 s"),
    ):
        NvidiaSmi(host.ssh).readings(NAME)


@dataclass
class Lab:
    """`lab`, one of whose hosts can be entered; and what is said."""

    site: Site
    shell: NvidiaSmi
    said: list[str] = field(default_factory=list)

    def stored(self, entity: str, names: tuple[str, ...]) -> Mapping[str, CounterSeries]:
        inventory = self.site.vcenter.inventory()
        until = inventory.taken_at + timedelta(minutes=5)
        with Measurements.open(self.site.state_dir, "", inventory.vcenter) as store:
            return store.window(entity, names, until - timedelta(minutes=15), until)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    world = build("lab")
    with SimServer(world) as server:
        (esx,) = (host for host in world.by_type("HostSystem") if host.display_name == NAME)
        with (
            ssh_server(tmp_path, NAME, lambda command: nvidia_smi.answer(esx, command)) as host,
            Connection(target_of(server)) as connection,
            Site(connection, tmp_path / "state", wall_clock) as site,
        ):
            lab = Lab(site, NvidiaSmi(host.ssh))
            site.say = lab.said.append
            yield lab


def last(series: CounterSeries) -> int | None:
    """The one sample that there is."""
    known_steps = [step for step in series.steps if step is not None]
    assert len(known_steps) < 2
    assert all(step.highest == step.average and step.covered == pytest.approx(1 / 15) for step in known_steps)
    return known_steps[0].average if known_steps else None


def test_what_hosts_tell_is_kept_beside_the_counters_and_what_they_do_not_is_missing(lab: Lab) -> None:
    lab.site.shell = lab.shell
    cycle = observe(lab.site)
    inventory = lab.site.vcenter.inventory()
    assert (cycle.hosts_entered, cycle.hosts) == (1, 2)
    [message] = lab.said
    assert message.startswith("nvidia-smi was not read: esx-02.lab: its SSH key is unknown, or not the one in")
    host = inventory.find_host(NAME)
    counters = (*SMI_GPU_COUNTERS, SMI_POWER_LIMIT)
    names = tuple(f"{name}@{gpu.address}" for name in counters for gpu in host.gpus)
    newest = {name: last(series) for name, series in lab.stored(host.ref, names).items()}
    first = host.gpus[0].address
    assert newest[f"smi.gpu.temperature.latest@{first}"] == 41
    assert newest[f"smi.gpu.slowedByPower.latest@{first}"] == 1
    assert newest[f"smi.gpu.slowedByHeat.latest@{first}"] == 0
    assert newest[f"smi.gpu.powerLimit.latest@{first}"] == 296, "300 W, off by 3.2 % at most"
    silent_host = inventory.find_host("esx-02.lab")
    assert not any(last(series) for series in lab.stored(silent_host.ref, names).values())
    vms = {vm.name: lab.stored(vm.ref, SMI_VM_COUNTERS) for vm in inventory.vms_by_host[host.ref] if vm.profiles}
    used = {name: last(series["smi.vgpu.utilization.latest"]) for name, series in vms.items()}
    assert {1184, 1312} <= {used_mib for used_mib in used.values() if used_mib is not None}, (
        "12 and 13 %, off by at most 3.2 %"
    )
    licensed = {last(series["smi.vgpu.licensed.latest"]) for series in vms.values()}
    assert {0, 1} <= licensed
    assert any(vm.counters is None for vm in inventory.vms.values())


def test_a_diagnosis_knows_the_limit_of_power_of_its_gpu(lab: Lab) -> None:
    lab.site.shell = lab.shell
    observe(lab.site)
    inventory = lab.site.vcenter.inventory()
    inventory = replace(inventory, taken_at=inventory.taken_at + timedelta(minutes=1))
    [vm] = [vm for vm in inventory.vms.values() if vm.name == "vdi-01"]
    cases, _ = read_cases(lab.site.measurements_store, inventory, catalog_of(inventory), [vm], None)
    assert cases[vm.ref].facts.power_limit_w == 296


def test_without_a_shell_nobody_is_asked(lab: Lab) -> None:
    cycle = observe(lab.site)
    assert (cycle.hosts_entered, lab.said) == (None, [])
    [running] = [vm for vm in lab.site.vcenter.inventory().vms.values() if vm.name == "vdi-01"]
    assert set(map(last, lab.stored(running.ref, SMI_VM_COUNTERS).values())) == {None}
    assert any(lab.stored(running.ref, (CPU_MHZ,))[CPU_MHZ].steps)


def test_a_name_that_two_vms_of_a_host_have_tells_of_neither(lab: Lab) -> None:
    from gpuops.extras.observe.observing import host_readings

    inventory = lab.site.vcenter.inventory()
    host = inventory.find_host(NAME)
    first, second = [vm for vm in inventory.vms_by_host[host.ref] if vm.profiles][:2]
    blocks, _ = host_readings(lab.shell, inventory, lab.said.append)
    assert first.ref in blocks
    twins = replace(inventory, vms={**inventory.vms, second.ref: replace(second, name=first.name)})
    blocks, vgpu_count = host_readings(lab.shell, twins, lab.said.append)
    assert vgpu_count == 1
    assert not {first.ref, second.ref} & blocks.keys()
