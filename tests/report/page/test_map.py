"""The map and the night: the map's records of a fleet, and in a browser element by element beside the document."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from gpuops.config.policy import parse_policy
from gpuops.execute.site import catalog_of
from gpuops.extras.web.page.fleet_map import VmRole, fleet_map, role_of
from gpuops.extras.web.page.html import page as page_of
from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import VgpuDevice, Vm
from gpuops.report.document import as_values
from gpuops.report.monitoring.fleet_view import fleet
from tests.report.page.conftest import Reported, open_page

SHOWN = """() => [...document.querySelectorAll('.gpu')].map(gpu => ({
  gpu: gpu.dataset.gpu, use: gpu.dataset.use, shown: gpu.offsetParent !== null,
  used: gpu.querySelector('.used').textContent,
  slots: [...gpu.querySelectorAll('.slot')].map(slot => [
    slot.dataset.vm ?? null, slot.textContent, [...slot.classList]]) }))"""
CHIPS = """() => [...document.querySelectorAll('.host')].map(host => [host.dataset.host,
  [...host.querySelectorAll('.chip')].map(chip => chip.dataset.vm)])"""
LANES = """() => [...document.querySelectorAll('[data-lane]')].map(lane => ({
  ref: lane.dataset.lane, name: lane.querySelector('bdi').textContent,
  held: [...lane.querySelectorAll('.held')].map(held => [
    held.dataset.from, held.dataset.until, held.offsetLeft, held.offsetWidth]),
  steps: [...lane.querySelectorAll('.step')].map(step => step.dataset.step),
  step_at: [...lane.querySelectorAll('.step')].map(step => step.offsetLeft),
  incidents: lane.querySelectorAll('.incident').length, width: lane.querySelector('.track').offsetWidth,
  deadline: lane.querySelector('.deadline')?.offsetLeft ?? null }))"""


@pytest.mark.long
def test_the_map_has_every_gpu_and_every_holder_of_the_document(page: Page, reported: Reported) -> None:
    names = {vm["ref"]: vm for vm in reported.document["vms"]}
    drawn = {tile["gpu"]: tile for tile in page.evaluate(SHOWN)}
    assert len(drawn) == reported.document["use"]["gpus"] > 0
    for host, gpu in reported.gpus():
        drawn_gpu = drawn.pop(f"{host['ref']} {gpu['address']}")
        held_slots = [(vm, text, classes) for vm, text, classes in drawn_gpu["slots"] if vm is not None]
        assert [(vm, text) for vm, text, _ in held_slots] == [
            (slot["vm"], names[slot["vm"]]["name"]) for slot in gpu["slots"]
        ]
        assert all(names[vm]["role"] in classes for vm, _, classes in held_slots)
        assert drawn_gpu["use"] == gpu["use"]
        assert drawn_gpu["used"] == ("?" if gpu["used"] is None else f"{round(100 * gpu['used'])} %")
        free = len(drawn_gpu["slots"]) - len(held_slots)
        if gpu["open_slots"] is not None and gpu["use"] != "full":
            assert free == gpu["open_slots"]
        else:
            assert free == (gpu["use"] in ("free", "partly"))
    assert drawn == {}
    waiting = {host["ref"]: host["vms_not_on_a_gpu"] for host in reported.document["hosts"]}
    assert dict(page.evaluate(CHIPS)) == waiting


@pytest.mark.long
def test_the_map_is_what_inventory_tells(reported: Reported) -> None:
    """Its sums are those of its own records, and each running VM with a vGPU is on a GPU of its own host."""
    document = reported.document
    uses = [gpu["use"] for _, gpu in reported.gpus()]
    for use in ("free", "partly", "full", "unknown"):
        assert document["use"][f"gpus_{use}"] == uses.count(use)
    on = {vm["ref"] for vm in document["vms"] if vm["power"] == "poweredOn" and vm["profiles"]}
    assert on == {slot["vm"] for _, gpu in reported.gpus() for slot in gpu["slots"] if slot["profile"]}


@pytest.mark.long
def test_what_goes_on_is_drawn_until_vcenter_was_read(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    document = spread_over_hours(reported.document)
    night = document["last_night"]
    night["vms"] = [{**vm, "held": [{**period, "until": None} for period in vm["held"]]} for vm in night["vms"]]
    document["read_at"] = (at(night["began"]) + timedelta(hours=6)).isoformat()
    path = tmp_path / "open.html"
    path.write_text(page_of(document), encoding="utf-8")
    opened_page = open_page(chromium, path)
    whole = at(night["back_by"]) - at(night["began"])
    for lane in opened_page.page.evaluate(LANES):
        [(_, last, offset, width)] = lane["held"]
        assert last == ""
        assert offset + width == pytest.approx(lane["width"] * (timedelta(hours=6) / whole), abs=3)
    assert set(opened_page.page.locator(".held.ml").all_text_contents()) == {"runs"}
    opened_page.page.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cluster", "lab-cluster"), ("profile", "nvidia_a40-8q"), ("profile", "grid_a100-3-20c"), ("role", "desktop"),
        ("role", "ml"), ("state", "free"), ("state", "partly"), ("state", "full"), ("state", "suspended"),
        ("state", "poweredOn"), ("text", "vdi-07"), ("text", "ESX-02"), ("text", "nobody"),
    ],
)  # fmt: skip
def test_a_filter_leaves_what_the_document_says(page: Page, reported: Reported, name: str, value: str) -> None:
    page.evaluate(
        "([name, value]) => { const form = document.getElementById('filters'); form[name].value = value;"
        " form.dispatchEvent(new Event('input', {bubbles: true})); }",
        [name, value],
    )
    expected = {
        f"{host['ref']} {gpu['address']}" for host, gpu in reported.gpus() if fits(reported, host, gpu, name, value)
    }
    assert {tile["gpu"] for tile in page.evaluate(SHOWN) if tile["shown"]} == expected
    assert page.locator("output").text_content().startswith(f"{len(expected)} of ")  # type: ignore[union-attr]
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("() => [...document.querySelectorAll('.gpu')].every(gpu => gpu.offsetParent !== null)")


def fits(reported: Reported, host: dict[str, Any], gpu: dict[str, Any], name: str, value: str) -> bool:
    """What a filter means, told once more: GPUs of a state, or those of which a VM has what is asked for."""
    names = {vm["ref"]: vm for vm in reported.document["vms"]}
    holders = [names[slot["vm"]] for slot in gpu["slots"]]
    match name, value:
        case "cluster", _:
            return bool(host["cluster"] == value)
        case "profile", _:
            return value in reported.document["rooms"][gpu["room"]] or any(value in vm["profiles"] for vm in holders)
        case "role", _:
            return any(vm["role"] == value for vm in holders)
        case "state", "suspended" | "poweredOn":
            return any(vm["power"] == value for vm in holders)
        case "state", _:
            return bool(gpu["use"] == value)
        case _:
            return value.lower() in host["name"].lower() or any(value.lower() in vm["name"].lower() for vm in holders)


@pytest.mark.long
def test_a_cluster_is_shown_without_the_others(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    first, second = reported.document["hosts"]
    document = {**reported.document, "hosts": [first, {**second, "cluster": None}]}
    path = tmp_path / "clusters.html"
    path.write_text(page_of(document), encoding="utf-8")
    opened_page = open_page(chromium, path)
    for cluster, host in (("lab-cluster", first), ("standalone hosts", second)):
        opened_page.page.locator("select[name=cluster]").select_option(cluster)
        assert {tile["gpu"].split()[0] for tile in opened_page.page.evaluate(SHOWN) if tile["shown"]} == {host["ref"]}
        assert opened_page.page.locator("#fleet h3:visible bdi").all_inner_texts() == [cluster]
    opened_page.page.close()


@pytest.mark.long
def test_two_filters_hold_at_once(page: Page, reported: Reported) -> None:
    page.locator("select[name=role]").select_option("desktop")
    page.locator("input[name=text]").fill("vdi-01")
    [tile] = [candidate for candidate in page.evaluate(SHOWN) if candidate["shown"]]
    faded = {text for _, text, classes in tile["slots"] if "faded" in classes}
    assert "vdi-01" not in faded
    assert "vdi-02" in faded


@pytest.mark.long
def test_the_night_has_every_period_and_step_of_the_document(page: Page, reported: Reported) -> None:
    night = reported.document["last_night"]
    drawn = {lane["ref"]: lane for lane in page.evaluate(LANES)}
    taken_vms = [vm for vm in night["vms"] if vm["held"] or vm["steps"]]
    assert len(drawn) == len(taken_vms) > 0
    for vm in taken_vms:
        drawn_lane = drawn[vm["ref"]]
        assert drawn_lane["name"] == vm["name"]
        assert [(first, last) for first, last, _, _ in drawn_lane["held"]] == [
            (period["from"], period["until"]) for period in vm["held"]
        ]
        assert drawn_lane["steps"] == [f"{step['what']} {step['from']}" for step in vm["steps"]]
        assert drawn_lane["incidents"] == sum(incident["of"] == vm["name"] for incident in night["incidents"])


def spread_over_hours(document: dict[str, Any]) -> dict[str, Any]:
    """The same night, as long as one is: a VM every few minutes, the deadline in the morning."""
    evening = datetime(2026, 11, 20, 20, tzinfo=UTC)
    vms = []
    for number, vm in enumerate(document["last_night"]["vms"]):
        begins, ends = evening + timedelta(minutes=7 * number), evening + timedelta(hours=9, minutes=3 * number)
        periods = [{**period, "from": begins.isoformat(), "until": ends.isoformat()} for period in vm["held"][:1]]
        step = {"what": "suspend", "from": begins.isoformat(), "until": begins.isoformat(), "done": True}
        vms.append({**vm, "held": periods, "steps": [step]})
    incident = {
        "at": (evening + timedelta(hours=5)).isoformat(),
        "of": vms[0]["name"],
        "what": "cut off",
        "reason": None,
    }
    night = {
        **document["last_night"], "vms": vms, "incidents": [incident], "began": evening.isoformat(),
        "ended": (evening + timedelta(hours=10)).isoformat(), "back_by": (evening + timedelta(hours=11)).isoformat(),
    }  # fmt: skip
    return {**document, "last_night": night}


@pytest.mark.long
def test_what_is_drawn_of_the_night_lies_at_its_time(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    """In proportion to the time from the first moment of the night to its deadline."""
    document = spread_over_hours(reported.document)
    path = tmp_path / "night.html"
    path.write_text(page_of(document), encoding="utf-8")
    opened_page = open_page(chromium, path)
    lanes = opened_page.page.evaluate(LANES)
    night = document["last_night"]
    began, whole = at(night["began"]), at(night["back_by"]) - at(night["began"])
    assert len(lanes) == len(night["vms"])
    for lane in lanes:
        points = [(first, offset) for first, _, offset, _ in lane["held"]]
        points += [(last, offset + width) for _, last, offset, width in lane["held"]]
        points += [
            (step.partition(" ")[2], offset) for step, offset in zip(lane["steps"], lane["step_at"], strict=True)
        ]
        points.append((night["back_by"], lane["deadline"]))
        for moment, x in points:
            assert x == pytest.approx(lane["width"] * ((at(moment) - began) / whole), abs=3)
    marked = [marked_lane["name"] for marked_lane in lanes if marked_lane["incidents"]]
    assert marked == [night["incidents"][0]["of"]]
    assert opened_page.complaints == []
    opened_page.page.close()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.long
def test_the_tables_say_the_figures_of_the_document(page: Page, reported: Reported) -> None:
    document = reported.document
    nights = page.locator("section", has=page.locator("#nights")).locator("tbody tr")
    assert nights.count() == len(document["nights"])
    for row, night in zip(nights.all_inner_texts(), document["nights"], strict=True):
        cells = [cell.strip() for cell in row.split("\t")]
        assert cells[:5] == [
            night["night"], night["outcome"],
            *(str(night[key]) for key in ("desktops_taken", "desktops_back", "ml_vms")),
        ]  # fmt: skip
        assert cells[5] == f"{night['gpu_hours']:.1f}"
        assert cells[-1] == str(night["incident_count"])
    owners = page.locator("section", has=page.locator("#showback")).locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in owners] == [
        owner["owner"] or "no owner" for owner in document["showback"]["owners"]
    ]
    idle = page.locator("section", has=page.locator("#idle")).locator("tbody tr")
    assert idle.count() == len(document["idle"])
    assert sorted(idle.locator("th").all_inner_texts()) == sorted(desktop["name"] for desktop in document["idle"])


POLICY = parse_policy(
    """
version: 1
name: small
pools:
  - {name: all, parked: true, select: {folder: desktops}, idle: {cpu_below_mhz: 500}, owner: none}
ml:
  queue: [{vm: ml-01}, {vm: "train-*"}]
windows: any
""",
    "of the tests",
)


def map_fleet(inventory: Inventory) -> dict[str, Any]:
    return as_values(fleet_map(fleet(inventory, catalog_of(inventory)), None))


def by_address(fleet_map: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (host["name"].split(".")[0], gpu["address"]): gpu
        for host in fleet_map["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]
    }  # fmt: skip


def test_each_gpu_by_its_use(inventory: Inventory) -> None:
    fleet_map = map_fleet(inventory)
    gpus = by_address(fleet_map)
    use_by_gpu = {key: (gpu["use"], gpu["used"], gpu["takes_vgpus"]) for key, gpu in gpus.items()}
    assert use_by_gpu == {
        ("esx-01", "0000:3b:00.0"): ("partly", 0.5, True),
        ("esx-01", "0000:af:00.0"): ("free", 0, True),
        ("esx-01", "0000:d8:00.0"): ("full", 1.0, False),
        ("esx-02", "0000:3b:00.0"): ("unknown", None, True),
    }
    [slot] = gpus["esx-01", "0000:3b:00.0"]["slots"]
    assert slot == {"vm": "vm-1", "profile": "grid_a100-3-20c", "gpus": 0.5, "start": None, "certain": True}
    [whole] = gpus["esx-01", "0000:d8:00.0"]["slots"]
    assert (whole["vm"], whole["profile"], whole["gpus"]) == ("vm-2", None, 1.0)
    use = fleet_map["use"]
    assert (use["gpus_free"], use["gpus_partly"], use["gpus_full"], use["gpus_unknown"]) == (1, 1, 1, 1)
    assert (use["free_whole_gpus"], use["free_in_parts"], use["free_not_known_gpus"]) == (1, 0.5, 1)
    assert use["fragmented"] == pytest.approx(0.3333)


def test_a_gpu_that_serves_graphics_is_no_room_for_vgpus(inventory: Inventory) -> None:
    host = inventory.hosts["host-1"]
    graphics = {"0000:af:00.0": GraphicsType.SHARED}
    gpus = tuple(replace(gpu, graphics_type=graphics.get(str(gpu.address), gpu.graphics_type)) for gpu in host.gpus)
    fleet_map = map_fleet(inventory.with_hosts([replace(host, gpus=gpus)]))
    assert by_address(fleet_map)["esx-01", "0000:af:00.0"]["takes_vgpus"] is False
    assert fleet_map["use"]["free_whole_gpus"] == 0


def test_what_is_free_stands_once_for_all_gpus_that_are_alike(inventory: Inventory) -> None:
    fleet_map = map_fleet(inventory)
    rooms = [gpu["room"] for gpu in by_address(fleet_map).values()]
    assert sorted(set(rooms)) == list(range(len(fleet_map["rooms"])))
    assert len(fleet_map["rooms"]) == len({str(room) for room in fleet_map["rooms"]})


@pytest.mark.parametrize(
    ("name", "folder", "profiles", "role", "by_policy"),
    [
        ("vdi-1", "desktops", ("nvidia_a40-8q",), VmRole.DESKTOP, VmRole.DESKTOP),
        ("vdi-2", "desktops", ("nvidia_a40-8c",), VmRole.ML, VmRole.DESKTOP),
        ("ml-01", "ml", ("nvidia_a40-8q",), VmRole.DESKTOP, VmRole.ML),
        ("train-7", "ml", (), VmRole.OTHER, VmRole.ML),
        ("app", "apps", ("nvidia_a40-8a", "nvidia_a40-8c"), VmRole.DESKTOP, VmRole.DESKTOP),
        ("other", "apps", ("of another vendor",), VmRole.OTHER, VmRole.OTHER),
    ],
)
def test_the_role_of_a_vm(name: str, folder: str, profiles: tuple[str, ...], role: VmRole, by_policy: VmRole) -> None:
    devices = tuple(VgpuDevice(number, profile) for number, profile in enumerate(profiles))
    vm = Vm("vm-1", name, f"/dc/vm/{folder}/{name}", devices=devices)
    assert (role_of(vm, None), role_of(vm, POLICY)) == (role, by_policy)
