"""The map and the night in a browser, beside the document: element by element, filter by filter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.report.page.conftest import Reported

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
  incidents: lane.querySelectorAll('.incident').length, width: lane.querySelector('.track').offsetWidth,
  deadline: lane.querySelector('.deadline')?.offsetLeft ?? null }))"""


def test_the_map_has_every_gpu_and_every_holder_of_the_document(page: Page, reported: Reported) -> None:
    names = {vm["ref"]: vm for vm in reported.document["vms"]}
    drawn = {each["gpu"]: each for each in page.evaluate(SHOWN)}
    assert len(drawn) == reported.document["use"]["gpus"] > 0
    for host, gpu in reported.gpus():
        made = drawn.pop(f"{host['ref']} {gpu['address']}")
        held = [(vm, text, classes) for vm, text, classes in made["slots"] if vm is not None]
        assert [(vm, text) for vm, text, _ in held] == [
            (slot["vm"], names[slot["vm"]]["name"]) for slot in gpu["slots"]
        ]
        assert all(names[vm]["role"] in classes for vm, _, classes in held)
        assert made["use"] == gpu["use"]
        assert made["used"] == ("?" if gpu["used"] is None else f"{round(100 * gpu['used'])} %")
        free = len(made["slots"]) - len(held)
        if gpu["open_slots"] is not None and gpu["use"] != "full":
            assert free == gpu["open_slots"]
        else:
            assert free == (gpu["use"] in ("free", "partly"))
    assert drawn == {}
    waiting = {host["ref"]: host["vms_not_on_a_gpu"] for host in reported.document["hosts"]}
    assert dict(page.evaluate(CHIPS)) == waiting


def test_the_map_is_what_inventory_tells(reported: Reported) -> None:
    """Its sums are those of its own records, and each running VM with a vGPU is on a GPU of its own host."""
    document = reported.document
    uses = [gpu["use"] for _, gpu in reported.gpus()]
    for use in ("free", "partly", "full", "unknown"):
        assert document["use"][f"gpus_{use}"] == uses.count(use)
    on = {vm["ref"] for vm in document["vms"] if vm["power"] == "poweredOn" and vm["profiles"]}
    assert on == {slot["vm"] for _, gpu in reported.gpus() for slot in gpu["slots"] if slot["profile"]}


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
    assert {each["gpu"] for each in page.evaluate(SHOWN) if each["shown"]} == expected
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


def test_two_filters_hold_at_once(page: Page, reported: Reported) -> None:
    page.locator("select[name=role]").select_option("desktop")
    page.locator("input[name=text]").fill("vdi-01")
    [shown] = [each for each in page.evaluate(SHOWN) if each["shown"]]
    faded = {text for _, text, classes in shown["slots"] if "faded" in classes}
    assert "vdi-01" not in faded
    assert "vdi-02" in faded


def test_the_night_has_every_period_and_step_of_the_document(page: Page, reported: Reported) -> None:
    night = reported.document["last_night"]
    drawn = {each["ref"]: each for each in page.evaluate(LANES)}
    taken = [vm for vm in night["vms"] if vm["held"] or vm["steps"]]
    assert len(drawn) == len(taken) > 0
    for vm in taken:
        made = drawn[vm["ref"]]
        assert made["name"] == vm["name"]
        assert [(first, last) for first, last, _, _ in made["held"]] == [
            (each["from"], each["until"]) for each in vm["held"]
        ]
        assert made["steps"] == [f"{each['what']} {each['from']}" for each in vm["steps"]]
        assert made["incidents"] == sum(each["of"] == vm["name"] for each in night["incidents"])


def test_the_bars_of_the_night_lie_at_their_times(page: Page, reported: Reported) -> None:
    """Of any two moments the later one is further to the right, in proportion to the time between them."""
    lanes = page.evaluate(LANES)
    points = [(at(first), left) for each in lanes for first, _, left, _ in each["held"]]
    points += [(at(last), left + width) for each in lanes for _, last, left, width in each["held"] if width > 8]
    deadline = reported.document["last_night"]["back_by"]
    if deadline is not None:
        points += [(at(deadline), each["deadline"]) for each in lanes]
    (first, left), (last, right) = min(points), max(points)
    per_second = (right - left) / (last - first).total_seconds()
    for moment, x in points:
        assert x == pytest.approx(left + (moment - first).total_seconds() * per_second, abs=4)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


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
        each["owner"] or "nobody" for each in document["showback"]["owners"]
    ]
    idle = page.locator("section", has=page.locator("#idle")).locator("tbody tr")
    assert idle.count() == len(document["idle"])
    assert sorted(idle.locator("th").all_inner_texts()) == sorted(each["name"] for each in document["idle"])
