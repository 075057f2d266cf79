"""`gpuops place`: what is printed, with which code it ends, and that nothing is ever written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from gpuops.config.decoding import keys_of
from gpuops.config.requests_file import RequestEntry
from tests.cli.conftest import Lab
from tests.cli.test_bad_input import one_line
from tests.cli.test_symmetry import options

TEMPLATE = Path(__file__).parents[3] / "templates" / "requests.yaml"
ONE = ("place", "--profile", "a100-3-20c", "--vcpu", "16", "--memory", "64GiB")
WIDE = ("place", "--gpus", "1", "--model", "l40s", "--vcpu", "40", "--memory", "64GiB", "--numa", "required")


def test_one_and_many(lab: Lab, golden: Callable[[str, str], None]) -> None:
    results = [
        lab.run(*ONE, "--explain"),
        lab.run(*ONE, "--numa", "required", "--count", "2"),
        lab.run("place", "--file", str(TEMPLATE)),
        lab.run(*WIDE, "--host", "esx-02*"),
        lab.run(*ONE, "--cluster", "lab"),
    ]
    assert [result.exit_code for result in results] == [0, 0, 0, 3, 3]
    assert [result.stderr for result in results] == [""] * 5
    golden("place-lab.txt", "".join(result.stdout for result in results))
    assert lab.effects == []


@pytest.mark.long
def test_the_document_is_the_answer(lab: Lab) -> None:
    result = lab.run("place", "--file", str(TEMPLATE), "--output", "json")
    document = json.loads(result.stdout)
    assert (document["schema_version"], document["kind"], document["exit_code"]) == (1, "placement", 0)
    assert (document["placed"], document["refused"]) == (8, 0)
    first = document["requests"][0]
    assert (first["name"], first["placed"], first["choices"], first["rejections"]) == ("train-a", True, [], [])
    assert first["request"]["numa"] == "required"
    assert first["place"] == {
        "host": {"ref": first["place"]["host"]["ref"], "name": "esx-01.lab"},
        "cluster": "lab-cluster",
        "numa_node": 0,
        "numa_nodes": [0],
        "gpus": [
            {"device": 0, "address": "0000:3b:00.0", "pinned": True},
            {"device": 1, "address": "0000:3b:00.0", "pinned": True},
        ],
        "steering": "pinned",
        "vm": {
            "devices": [{"device": "vgpu grid_a100-3-20c", "guest_numa_node": 0}] * 2,
            "device_group": None,
            "memory_reservation_mib": 131072,
            "extra_config": {
                "numa.nodeAffinity": "0",
                "pciPassthru.64bitMMIOSizeGB": "256",
                "pciPassthru.use64bitMMIO": "TRUE",
                "pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0",
                "pciPassthru1.cfg.gpu-pci-id": "0000:3b:00.0",
            },
            "cores_per_numa_node": 16,
        },
    }
    (claim,) = document["claims"]
    assert (claim["vm"]["name"], claim["gpus"], claim["lost"]) == ("vdi-11", ["0000:3b:00.0"], [])
    as_yaml = yaml.safe_load(lab.run("place", "--file", str(TEMPLATE), "-o", "yaml").stdout)
    assert as_yaml["requests"] == document["requests"]
    refused = lab.run(*WIDE, "--explain", "-o", "json")
    answer = json.loads(refused.stdout)
    assert (refused.exit_code, answer["exit_code"], answer["refused"]) == (3, 3, 1)
    (request,) = answer["requests"]
    assert (request["place"], request["nearest"]) == (None, "with numa preferred it fits on esx-02.lab")
    assert any(reason["needed"] == 40 and reason["available"] == 32 for reason in request["rejections"])
    subjects = {choice["subject"]: choice["feasible"] for choice in request["choices"]}
    assert subjects["esx-02.lab 0000:5e:00.0"]
    assert not subjects["esx-01.lab 0000:3b:00.0"]
    assert lab.effects == []


@pytest.mark.long
def test_a_saved_inventory_gives_the_same_answer(lab: Lab, gpuops: Callable[..., Result], saved_lab: Path) -> None:
    live = lab.run("place", "--file", str(TEMPLATE), "--explain")
    assert live.stdout == gpuops("place", "--file", str(TEMPLATE), "--explain", "--inventory", str(saved_lab)).stdout


@pytest.mark.long
def test_what_is_to_stay_free_is_told(lab: Lab) -> None:
    answer = json.loads(lab.run(*ONE, "--keep-free", "a100-3-20c=3", "-o", "json").stdout)
    places = [{"where": "lab-cluster", "free_before": 4, "free_after": 3}]
    assert answer["kept_free"] == [{"profile": "grid_a100-3-20c", "count": 3, "places": places}]
    refused = lab.run(*ONE, "--keep-free", "a100-3-20c=4")
    assert refused.exit_code == 3
    rule = "vGPUs of grid_a100-3-20c left free in cluster lab-cluster afterwards (--keep-free): needs 4, 3 there"
    assert f"esx-01.lab: {rule}" in " ".join(refused.stdout.split())
    assert "to be kept free: 4 of grid_a100-3-20c; 4 of 4 left in lab-cluster" in refused.stdout


@pytest.mark.long
def test_a_plan_of_the_solver_that_leaves_too_few_is_not_taken(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "requests.yaml"
    requests = "".join(f"  - {{name: w-{n}, vcpu: 4, memory: 4GiB, profile: a100-3-20c}}\n" for n in range(4))
    path.write_text(f"version: 1\nrequests:\n{requests}", encoding="utf-8")
    result = lab.run("place", "--file", str(path), "--optimize", "--keep-free", "a100-3-20c=2", "-o", "json")
    document = json.loads(result.stdout)
    assert (document["placed"], document["refused"]) == (2, 2)
    assert document["optimum"]["note"] == (
        "the solver's plan leaves 0 of grid_a100-3-20c free in lab-cluster, and --keep-free asks for 2: "
        "all were placed one after another"
    )
    assert document["kept_free"][0]["places"][0]["free_after"] == 2


def test_a_bad_file_is_one_line(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "requests.yaml"
    path.write_text("version: 1\nrequests:\n  - {name: a, vcpus: 4}\n", encoding="utf-8")
    one_line(lab.run("place", "--file", str(path)), 2, "requests.0.vcpu: is missing", "templates/requests.yaml")
    table = tmp_path / "requests.csv"
    table.write_text("name,vcpu,memory,profile\na,4,4GiB,x,\n", encoding="utf-8")
    one_line(lab.run("place", "--file", str(table)), 2, "line 2: the line has 5 cells, but the header has 4 columns")


@pytest.mark.long
def test_names_that_mean_nothing_are_a_refusal_with_what_there_is(lab: Lab) -> None:
    for words, reason in (
        (("--gpus", "1", "--model", "h100"), "(models in passthrough: NVIDIA L40S)"),
        (("--gpus", "1", "--cluster", "nowhere"), "clusters with GPUs: lab-cluster"),
        (("--gpus", "1", "--host", "nowhere"), "no host with a GPU is named nowhere"),
    ):
        result = lab.run("place", "--vcpu", "4", "--memory", "8GiB", *words)
        assert (result.exit_code, result.stderr) == (3, "")
        assert reason in result.stdout


BAD = """version: 1
requests:
  - {name: none-such, profile: a100-3-20c, vcpu: 4, memory: 8GiB, cluster: nowhere}
  - {name: too-large, profile: a40-48c, count: 3, vcpu: 2000, memory: 100TiB, numa: required}
  - {name: torn-1, profile: a40-8q, vcpu: 4, memory: 16GiB, affinity: x, anti_affinity: y}
  - {name: torn-2, profile: a40-8q, vcpu: 2000, memory: 16GiB, affinity: x, anti_affinity: y}
  - {name: fine, profile: a40-8q, vcpu: 4, memory: 16GiB}
"""


@pytest.mark.long
def test_every_reason_of_every_bad_request_is_told(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD, encoding="utf-8")
    result = lab.run("place", "--file", str(path))
    assert (result.exit_code, result.stderr) == (3, "")
    document = json.loads(lab.run("place", "--file", str(path), "-o", "json").stdout)
    assert (document["exit_code"], document["placed"], document["refused"]) == (3, 1, 4)
    by_name = {request["name"]: request for request in document["requests"]}
    for name, reasons in {
        "none-such": ("no host with a GPU is in cluster nowhere",),
        "too-large": ("logical CPUs for", "memory to reserve in full", "room for nvidia_a40-48c", "locked to vGPUs of"),
        "torn-1": ("affinity x and anti-affinity y contradict", "torn-2, of the same affinity, has no place by itself"),
        "torn-2": ("affinity x and anti-affinity y contradict", "logical CPUs for"),
    }.items():
        rules = [rejection["rule"] for rejection in by_name[name]["rejections"]]
        assert all(any(reason in rule for rule in rules) for reason in reasons), (name, rules)
        assert all(reason in result.stdout for reason in reasons)
    smaller = "with 128 of its 2000 vCPUs and 984 GiB of memory and numa preferred and 1 of its 3 vGPUs"
    assert by_name["too-large"]["nearest"] == f"{smaller} it fits on esx-02.lab"
    assert by_name["none-such"]["nearest"].startswith("outside of cluster nowhere it fits")
    assert by_name["torn-1"]["nearest"].startswith("without affinity x it fits on")
    assert by_name["torn-2"]["nearest"].startswith("with 128 of its 2000 vCPUs")


@pytest.mark.long
def test_several_profiles_in_one_vm_by_options_yaml_and_csv(lab: Lab, tmp_path: Path) -> None:
    devices = ["vgpu grid_a100-3-20c", "vgpu grid_a100-1-5c", "vgpu grid_a100-1-5c"]
    command = ("place", "--profile", "a100-1-5c", "--profile", "a100-3-20c", "--profile", "a100-1-5c")
    by_yaml, by_csv = tmp_path / "several.yaml", tmp_path / "several.csv"
    by_yaml.write_text(
        "version: 1\nrequests:\n"
        "  - {name: request, profiles: [{profile: a100-1-5c, count: 2}, a100-3-20c], vcpu: 4, memory: 8GiB}\n"
        "  - {name: torn, profiles: [a100-1-5c, a40-8q], vcpu: 4, memory: 8GiB}\n",
        encoding="utf-8",
    )
    by_csv.write_text("name,vcpu,memory,profiles\nrequest,4,8GiB,a100-1-5c; a100-3-20c; a100-1-5c\n", encoding="utf-8")
    torn = None
    for arguments in (
        (*command, "--vcpu", "4", "--memory", "8GiB"),
        ("place", "--file", str(by_csv)),
        ("place", "--file", str(by_yaml)),
    ):
        answers = json.loads(lab.run(*arguments, "-o", "json").stdout)["requests"]
        first = next(answer for answer in answers if answer["name"] == "request")
        assert [device["device"] for device in first["place"]["vm"]["devices"]] == devices
        torn = next((answer for answer in answers if answer["name"] == "torn"), None)
    assert torn is not None
    assert (
        torn["rejections"][0]["rule"]
        == "its vGPUs must be of one GPU model, not of NVIDIA A100 PCIe 40GB and NVIDIA A40"
    )
    assert torn["nearest"].startswith("with its vGPUs of a100-1-5c alone it fits on")
    assert "a100-1-5c + a40-8q" in lab.run("place", "--file", str(by_yaml)).stdout


@pytest.mark.long
def test_gpus_of_suspended_vms_that_come_back_later_are_not_kept(
    gpuops: Callable[..., Result], saved_lab: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "fleet.json"
    snapshot = json.loads(saved_lab.read_text(encoding="utf-8"))
    (suspended,) = [vm for vm in _dicts(snapshot) if vm.get("name") == "vdi-11" and "attributes" in vm]
    suspended["attributes"]["gpuops.return"] = "2026-11-03T06:00+00:00"
    saved.write_text(json.dumps(snapshot), encoding="utf-8")
    command = ("place", "--profile", "a40-8q", "--vcpu", "4", "--memory", "8GiB", "--inventory", str(saved))
    until = gpuops(*command, "--until", "2026-11-03T05:00+00:00")
    assert "the GPUs of vdi-11 (2026-11-03T06:00+00:00)" in until.stdout
    assert "kept for 1 suspended VM" in gpuops(*command, "--until", "2026-11-03T06:01+00:00").stdout
    document = json.loads(gpuops(*command, "--until", "2026-11-03T05:00+00:00", "-o", "json").stdout)
    assert (document["claims"], document["requests"][0]["request"]["until"]) == ([], "2026-11-03T05:00:00+00:00")
    assert [later_claim["vm"]["name"] for later_claim in document["later"]] == ["vdi-11"]


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    """Every mapping in a document."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(child)


def test_an_option_is_a_key_of_the_file() -> None:
    shown_options = options("place")
    of_all = ["pin", "suspended", "keep_free", "optimize", "file", "mig_layout"]
    assert [name for name in shown_options if name not in keys_of(RequestEntry)] == of_all
    by_file_alone = {"name", "profiles", "affinity", "anti_affinity", "spread", "priority"}
    assert set(keys_of(RequestEntry)) - set(shown_options) == by_file_alone


@pytest.mark.long
def test_what_many_gpus_say_alike_is_said_once(gpuops: Callable[..., Result]) -> None:
    words = ("place", "--profile", "a40-48c", "--vcpu", "8", "--memory", "64GiB")
    full = "locked to vGPUs of 8192 MiB while 6 run, nvidia_a40-48c has 49152 MiB: needs 1 slot, 0 there"
    result = gpuops(*words, "--suspended", "ignore", "--vcenter", "sim:vdi")
    assert result.exit_code == 3
    assert f"esx-01.vdi 0000:5e:00.0, esx-01.vdi 0000:af:00.0, esx-02.vdi 0000:3b:00.0 and 11 more: {full}" in (
        result.stdout
    )
    assert "; held by vdi-095" in result.stdout, "the holders of a GPU that is the only one of its kind"
    assert len(result.stdout.splitlines()) < 10


@pytest.mark.long
def test_what_the_request_itself_takes_does_not_run(gpuops: Callable[..., Result]) -> None:
    """Nor do suspended VMs: what runs is said to run, and who takes the rest is said too, where lines are merged as
    well."""
    words = ("place", "--vcpu", "8", "--memory", "64GiB", "--vcenter")
    twelve = gpuops(*words, "sim:scattered", "--profile", "a40-8q", "--count", "12").stdout
    first, third = "esx-01.scattered 0000:3b:00.0", "esx-03.scattered 0000:3b:00.0, esx-04.scattered 0000:3b:00.0"
    assert f"{first}: its 1 slot for nvidia_a40-8q is taken by this VM's first vGPUs\n" in twelve
    assert f"{third}: its 4 slots for nvidia_a40-8q are taken by this VM's first vGPUs\n" in twelve
    reason = "taken by suspended VMs that come back and this VM's first vGPUs; held by desk-10 (suspended)\n"
    assert f"esx-02.scattered 0000:3b:00.0: its 4 slots for nvidia_a40-8q are {reason}" in twelve
    assert "room for nvidia_a40-8q beside suspended VMs that come back: needs 12 slots, 3 there" in twelve
    three = gpuops(*words, "sim:lab", "--profile", "a100-4-20c", "--count", "3").stdout
    addresses = "esx-01.lab 0000:3b:00.0, esx-01.lab 0000:af:00.0"
    assert f"{addresses}: its 1 slot for grid_a100-4-20c is taken by this VM's first vGPUs\n" in three
    locked = gpuops(*words, "sim:scattered", "--profile", "a40-48q").stdout
    assert "esx-02.scattered 0000:3b:00.0, esx-03.scattered 0000:3b:00.0, esx-04.scattered 0000:3b:00.0: " in locked
    assert "locked to vGPUs of 8192 MiB while 2 run, nvidia_a40-48q has 49152 MiB" in locked


def test_what_a_vm_of_several_gpus_lacks_is_counted_in_all(gpuops: Callable[..., Result]) -> None:
    words = ("place", "--vcpu", "8", "--memory", "64GiB", "--vcenter", "sim:lab")
    assert "that is free (2 there): needs 4, 2 there" in gpuops(*words, "--gpus", "4").stdout


@pytest.mark.long
@pytest.mark.parametrize(("second", "code"), [('a40-8q, cluster: "x\\e[2J"', 3), ('"x\\e[2J"', 2)])
def test_a_name_cannot_move_the_cursor(lab: Lab, tmp_path: Path, second: str, code: int) -> None:
    path = tmp_path / "requests.yaml"
    path.write_text(
        'version: 1\nrequests:\n  - {name: "a\\e[2J", vcpu: 4, memory: 4GiB, profile: a40-8q}\n'
        f'  - {{name: "b\\e[2J", vcpu: 4, memory: 4GiB, profile: {second}}}\n',
        encoding="utf-8",
    )
    result = lab.run("place", "--file", str(path), "--explain")
    assert result.exit_code == code
    assert "\x1b" not in result.output
