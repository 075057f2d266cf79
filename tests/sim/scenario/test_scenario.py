"""Scenarios: their promises, repeated names and counts, errors of malformed ones, and every GPU of the catalogue."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpuops.catalog import load
from gpuops.errors import PolicyError
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.declared import Share, expand_name, numbers
from gpuops.sim.scenario.scenario_file import names, read
from gpuops.sim.state.board import GpuBoard, GpuMode, Sharing, VgpuType, board
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, RunningVgpu, VgpuPolicy, WantedVgpu, admit
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World


def powers(world: World) -> Counter[str]:
    return Counter(vm.state.power.value for vm in world.by_type("VirtualMachine"))


def test_names_are_the_files() -> None:
    assert names() == ("accelerators", "fleet", "lab", "scattered", "stacks", "supervisor", "training", "vdi")


def test_lab_has_what_its_comments_say() -> None:
    world = build("lab")
    vms = {vm.name: vm.state for vm in world.by_type("VirtualMachine")}
    ml_07 = vms["ml-07"]
    assert (ml_07.power, ml_07.firmware, ml_07.cpus, ml_07.memory_mib, ml_07.devices) == (
        Power.OFF,
        "efi",
        8,
        65536,
        (),
    )
    assert world.get(ml_07.host).name == "esx-01.lab"
    assert [name for name, vm in vms.items() if vm.power is Power.SUSPENDED] == ["vdi-11"]
    assert vms["golden"].is_template
    assert vms["legacy"].firmware == "bios"
    assert vms["asking"].question is not None
    assert len(vms["snapped"].snapshots) == 1
    assert sum(vm.name == "twin" for vm in world.by_type("VirtualMachine")) == 2
    keys = {field.name: field.key for field in world.custom_fields.fields.values()}
    assert vms["vdi-03"].attributes[keys["gpuops.opt-out"]] == "true"
    assert {vm.attributes.get(keys["gpuops.role"]) for vm in vms.values()} == {"desktop", "ml", None}


def test_vdi_is_an_evening() -> None:
    world = build("vdi")
    assert powers(world) == {"poweredOn": 104, "suspended": 8, "poweredOff": 20}
    per_host = Counter(world.get(vm.state.host).name for vm in world.by_type("VirtualMachine"))
    assert set(per_host) == {f"esx-{number:02}.vdi" for number in range(1, 9)}


def test_fleet_is_as_large_as_asked() -> None:
    world = build("fleet:hosts=40,vms=333")
    assert sum(1 for _ in world.by_type("HostSystem")) == 40
    assert sum(1 for _ in world.by_type("VirtualMachine")) == 333
    assert [cluster.name for cluster in world.by_type("ClusterComputeResource")] == ["fleet-01", "fleet-02"]


def test_same_seed_same_world_and_another_seed_only_other_ids() -> None:
    def describe_world(seed: int) -> list[tuple[str, str, str, str]]:
        vms = build("lab", seed=seed).by_type("VirtualMachine")
        return [(vm.moid, vm.name, vm.state.power.value, vm.state.uuid) for vm in vms]

    first, second, other_seed = describe_world(1), describe_world(1), describe_world(2)
    assert first == second
    assert [row[:3] for row in first] == [row[:3] for row in other_seed]
    assert first != other_seed


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([Share(percent=33.4, of="n"), Share(percent=33.3, of="n"), Share(percent=33.3, of="n")], [33, 34, 33]),
        ([3, "n"], [3, 100]),
    ],
)
def test_shares_add_up(counts: list[int | str | Share], expected: list[int]) -> None:
    assert numbers(counts, {"n": 100}) == expected


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("nowhere", "no scenario 'nowhere'"),
        ("fleet:hosts=5000", "hosts=5000 is out of range"),
        ("fleet:cats=5", "has no parameter 'cats=5'"),
        ("fleet:hosts=many", "has no parameter 'hosts=many'"),
        ("missing.yaml", "cannot be read"),
    ],
)
def test_what_cannot_be_had_is_said(spelled: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        build(spelled)


MINIMAL = """
description: one host
start: 2026-11-02T18:00:00Z
datacenter: dc
models: {m: {vendor: v, model: m, cpu: c, cores_per_socket: 8, cpu_mhz: 2000, memory_gib: 128}}
guests: {g: {id: ubuntu64Guest, name: Ubuntu}}
datastores: [{name: ds, capacity_gib: 100, free_gib: 50}]
networks: [VM Network]
clusters:
  - {name: c, hosts: [{name: esx, model: m, gpus: [{board: BOARD, at: "0000:3b:00.0", node: 0}]}]}
vms:
  - {name: "a-{}", count: COUNT, folder: f, "on": esx, guest: g, cpus: 2, memory_gib: 4, disk_gib: 10,
     devices: [{vgpu: nvidia_a40-24q}], power: "on"}
"""


def write_scenario(tmp_path: Path, text: str) -> str:
    file = tmp_path / "own.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_own_file_is_a_scenario(tmp_path: Path) -> None:
    world = build(write_scenario(tmp_path, MINIMAL.replace("BOARD", "a40").replace("COUNT", "2")))
    assert powers(world) == {"poweredOn": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"COUNT": "3"}, "a-3 cannot run on esx: .* 0000:3b:00.0: 2 of 2 vGPUs run"),
        ({"BOARD": "z9"}, "no GPU 'z9' in the catalogue"),
        ({'"on": esx': '"on": elsewhere'}, "no host or group of hosts called 'elsewhere'"),
        ({"memory_gib: 4": "memory_gib: much"}, r"vms\.0\.memory_gib: expected int, got str$"),
        ({"cpu_mhz: 2000": "cpu_mhz: fast"}, r"models\.m\.cpu_mhz: expected int, got str$"),
        ({"name: Ubuntu": "nme: Ubuntu"}, r"guests\.g: contains unknown field nme$"),
        ({"datacenter: dc": "datacentre: dc"}, "contains unknown field datacentre$"),
        ({"networks: [VM Network]": "networks: VM Network"}, "networks: expected a list, got str$"),
        ({"networks: [VM Network]": ""}, "missing required field networks$"),
        ({"networks:": "networks: ["}, "line 9, column 1: expected"),
    ],
)
def test_malformed_file_names_what_is_wrong(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    text = MINIMAL
    for old, new in {**changes, "BOARD": "a40", "COUNT": "2"}.items():
        text = text.replace(old, changes.get(old, new))
    with pytest.raises(PolicyError, match=message):
        build(write_scenario(tmp_path, text))


def test_scattered_has_no_free_gpu_and_allows_vmotion() -> None:
    world = build("scattered")
    seats = [seat for vm in world.by_type("VirtualMachine") for seat in vm.state.seats]
    gpus = {(vm.state.host, seat.pci_id) for vm in world.by_type("VirtualMachine") for seat in vm.state.seats}
    assert (len(seats), len(gpus)) == (15, 8)
    assert world.options["vgpu.hotmigrate.enabled"] is True
    assert build("lab").options["vgpu.hotmigrate.enabled"] is False


LAB = Path("gpuops/sim/scenarios/lab.yaml").read_text(encoding="utf-8")
BRACES = "may use braces only as {} or {:03}"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("ml", "ml"),
        ("ml-{}", "ml-7"),
        ("ml-{:03}.lab", "ml-007.lab"),
        ("{:2}-{:01}", "07-7"),
        ("ml-{:>400000000}", "ml-{:>400000000}"),
    ],
)
def test_a_name_has_its_number(pattern: str, name: str) -> None:
    assert expand_name(pattern, 7) == name


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ('name: "vdi-{:02}"', 'name: "v{:>400000000}"', f"vms.0.name: 'v{{:>400000000}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "v{:0400000000}"', f"vms.0.name: 'v{{:0400000000}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "v{"', f"vms.0.name: 'v{{' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{0.__class__}"', f"vms.0.name: '{{0.__class__}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{1}"', f"vms.0.name: '{{1}}' {BRACES}"),
        ('name: "vdi-{:02}"', 'name: "{x}"', f"vms.0.name: '{{x}}' {BRACES}"),
        ('name: "vdi-{:02}"', f'name: "{"v" * 256}"', "vms.0.name: has more than 255 characters"),
        ("name: esx-01.lab", 'name: "{:s}"', f"clusters.0.hosts.0.name: '{{:s}}' {BRACES}"),
        ("name: lab-cluster", 'name: "{!r}"', f"clusters.0.name: '{{!r}}' {BRACES}"),
        ("count: 2,", "count: vms,", "vms.0.count: there is no parameter 'vms'"),
        ("count: 2,", "count: {percent: 5, of: vms},", "vms.0.count: there is no parameter 'vms'"),
        (
            "name: esx-01.lab",
            "name: esx-01.lab\n        count: n",
            "clusters.0.hosts.0.count: there is no parameter 'n'",
        ),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, line: str, changed: str, message: str) -> None:
    assert line in LAB
    path = tmp_path / "own.yaml"
    path.write_text(LAB.replace(line, changed, 1), encoding="utf-8")
    with pytest.raises(PolicyError) as refused:
        read(str(path))
    assert refused.value.message == f"scenario {path}: {message}"


CATALOG = load(everything=True)
KEYS = [board.key for board in CATALOG.boards]


def capacity(model: GpuBoard, type_: VgpuType, mode: GpuMode) -> int:
    """How many VMs with one vGPU of that type start on one empty GPU."""
    seats: tuple[RunningVgpu, ...] = ()
    while True:
        gpu = GpuLoad("0000:3b:00.0", model, mode, True, seats)
        admission = admit(f"vm-{len(seats)}", [WantedVgpu(type_.name)], [gpu], VgpuPolicy.PERFORMANCE)
        if isinstance(admission, NotAdmitted):
            return len(seats)
        seats += admission


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("key", KEYS)
def test_one_gpu_holds_what_the_tables_say(key: str) -> None:
    model, facts = board(key), CATALOG.board(key)
    assert facts is not None
    expected, counted = {}, {}
    for profile in facts.profiles:
        type_ = model.by_name[profile.name]
        mode = GpuMode.MULTI_INSTANCE if type_.sharing is Sharing.MIG else GpuMode.SAME_SIZE
        expected[profile.name], counted[profile.name] = profile.max_per_gpu, capacity(model, type_, mode)
        if model.mixed_size and type_.starts_gib:
            name = f"{profile.name} mixed"
            expected[name], counted[name] = len(type_.starts_gib), capacity(model, type_, GpuMode.MIXED_SIZE)
    assert counted == expected


def test_only_large_boards_since_ampere_have_mixed_size() -> None:
    assert [board(key).mixed_size for key in ("p40", "a40", "h100")] == [False, True, True]
    assert [board(key).careful_instances for key in ("a100", "h100", "rtx-pro-6000")] == [False, True, True]


def test_unknown_board_is_said() -> None:
    with pytest.raises(PolicyError, match="no GPU 'nope'"):
        board("nope")
