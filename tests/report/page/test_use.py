"""Use, history and health on the page, beside the document; and a fleet of many hosts as cells with cards on demand."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from gpuops.extras.web.page.html import page as page_of
from tests.report.page.conftest import Opened, Reported, open_page

STEPS: Final = 56


def series(number: int) -> dict[str, list[int | None]]:
    """A week that rises to `number`; its tenth step was not measured."""
    week: list[int | None] = [number * step // STEPS for step in range(STEPS)]
    week[10] = None
    return dict.fromkeys(("utilization_percent", "memory_percent", "power_w", "temperature_c", "slowed"), week)


def with_use(document: dict[str, Any]) -> dict[str, Any]:
    """The document with numbers of each GPU and VM; of the first GPU problems, of the last one nothing."""
    document = deepcopy(document)
    gpus = [(host, gpu) for host in document["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]]
    keys = [f"{host['ref']} {gpu['address']}" for host, gpu in gpus]
    for _, gpu in gpus:
        gpu["problems"] = []
    now = {
        key: {
            "utilization_percent": 100.0 * number / len(keys),
            "memory_used_mib": 1024 * number,
            "temperature_c": 40 + number,
            "power_w": 100 + number,
            "power_limit_w": 300,
            "clock_mhz": 1410,
            "ecc_uncorrected": 2 if number == 0 else 0,
            "slowed_by_heat": number == 1,
            "slowed_by_power": False,
        }
        for number, key in enumerate(keys[:-1])
    }
    gpus[-1][1]["problems"] = None
    running = [vm["ref"] for vm in document["vms"] if vm["profiles"] and vm["power"] == "poweredOn"]
    document["measured"] = {
        "until": document["read_at"],
        "gpus": now,
        "vms": {
            ref: {"utilization_percent": 95.0 - number, "memory_used_mib": 2048} for number, ref in enumerate(running)
        },
        "history": {
            "begin": document["read_at"],
            "step_s": 10_800,
            "clusters": {host["cluster"] or "": series(40) for host in document["hosts"]},
            "fragmentation": {
                host["cluster"] or "": {"percent": [*[20] * (STEPS - 1), 30], "unusable_gpus_percent": None}
                for host in document["hosts"]
            },
            "hosts": {host["ref"]: series(60) for host in document["hosts"]},
            "gpus": {key: series(90) for key in keys},
        },
    }
    return document


def many(document: dict[str, Any], hosts: int) -> dict[str, Any]:
    """The document with so many hosts in three clusters; each after the first two is the second one without VMs."""
    document = with_use(document)
    first, second = document["hosts"]
    copies = []
    for number in range(hosts - 2):
        copy = deepcopy(second)
        copy |= {
            "ref": f"host-x{number}",
            "name": f"copy-{number}",
            "cluster": f"cluster-{number % 3}",
            "vms_not_on_a_gpu": [],
        }
        for node in copy["numa_nodes"]:
            for gpu in node["gpus"]:
                gpu |= {"slots": [], "use": "free", "used": 0.0, "open_slots": None}
        copies.append(copy)
    document["hosts"] = [first, second, *copies]
    document["use"]["hosts"] = hosts
    return document


def page_in(
    chromium: Browser, path: Path, document: dict[str, Any], *, width: int = 1440, scheme: str = "light"
) -> Opened:
    path.write_text(page_of(document), encoding="utf-8")
    return open_page(chromium, path, width=width, scheme=scheme)


@pytest.fixture
def used(chromium: Browser, reported: Reported, tmp_path: Path) -> Iterator[Page]:
    opened_page = page_in(chromium, tmp_path / "used.html", with_use(reported.document))
    yield opened_page.page
    assert opened_page.complaints == []
    opened_page.page.close()


@pytest.mark.long
def test_each_gpu_shows_its_numbers_and_its_week(used: Page, reported: Reported) -> None:
    document = with_use(reported.document)
    for key, use in document["measured"]["gpus"].items():
        measured_part = used.locator(f".gpu[data-gpu='{key}'] .measured")
        text = measured_part.inner_text()
        assert f"use {round(use['utilization_percent'])} %" in text
        assert f"{use['memory_used_mib'] / 1024:.1f} GiB" in text
        assert f"{use['temperature_c']} °C, {use['power_w']} of 300 W, 1410 MHz" in text
        assert ("2 memory errors" in text, "slowed by heat" in text) == (
            use["ecc_uncorrected"] == 2,
            use["slowed_by_heat"],
        )
        path = measured_part.locator("svg path").get_attribute("d")
        assert path is not None and path.count("M") == 2, "the step that was not measured is a gap"
    [row] = used.locator("#measured table").first.locator("tbody tr").all()
    assert row.locator("th").inner_text() == reported.document["hosts"][0]["cluster"]
    gpus = list(document["measured"]["gpus"].values())
    cells = row.locator("td").all_inner_texts()
    assert cells[0] == f"{len(gpus)} of {reported.document['use']['gpus']}"
    assert cells[3].strip() == f"{sum(use['power_w'] for use in gpus)} W"
    assert cells[5].strip() == "2", "one with memory errors, one that is slowed"
    assert [cell.strip() for cell in cells[6:]] == ["30 %", "-"], "the last step of the week, and an unmeasured one"
    assert row.locator("svg").count() == 6


@pytest.mark.long
def test_the_map_is_coloured_by_what_the_reader_chooses(used: Page, reported: Reported) -> None:
    def colours() -> list[str]:
        return used.evaluate(
            "[...document.querySelectorAll('.gpu .slot')].map(slot => getComputedStyle(slot).backgroundColor)"
        )

    by_role = colours()
    used.locator("select[name=colour]").select_option("use")
    by_use = colours()
    levels = used.evaluate("[...document.querySelectorAll('.gpu .slot')].map(slot => slot.dataset.level)")
    assert len({(level, colour) for level, colour in zip(levels, by_use, strict=True)}) == len(set(levels)) > 2
    assert used.locator("#colours li:visible").all_inner_texts()[:2] == ["0 to 19 %", "20 to 39 %"]
    used.locator("select[name=colour]").select_option("health")
    health = used.evaluate(
        "[...document.querySelectorAll('.gpu')].map(gpu => gpu.querySelector('.slot').dataset.health)"
    )
    assert (health[0], health[1], health[-1], set(health[2:-1])) == ("bad", "warn", "", {"good"})
    assert colours() != by_use != by_role


@pytest.mark.long
def test_many_hosts_are_cells_and_a_card_is_made_when_it_is_asked_for(
    chromium: Browser, reported: Reported, tmp_path: Path
) -> None:
    document = many(reported.document, 200)
    opened_page = page_in(chromium, tmp_path / "many.html", document)
    page = opened_page.page
    assert (page.locator(".cell:visible").count(), page.locator(".host").count()) == (200, 0)
    assert page.evaluate("document.documentElement.scrollHeight") < 6_000
    page.get_by_role("button", name="copy-7", exact=True).click()
    assert page.locator(".host:visible h4 bdi").all_inner_texts() == ["copy-7"]
    page.keyboard.press("Enter")
    assert page.locator(".host:visible").count() == 0, "pressed again, it is put away"
    page.locator("input[name=text]").fill("copy-19")
    names = {f"copy-{number}" for number in range(198) if f"copy-{number}".startswith("copy-19")}
    assert set(page.locator(".host:visible h4 bdi").all_inner_texts()) == names
    page.locator("input[name=text]").fill("")
    page.locator("select[name=cluster]").select_option("cluster-1")
    assert page.locator(".cell:visible").count() == 66
    assert opened_page.complaints == []
    page.close()


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2, 200])
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
@pytest.mark.parametrize("colour", ["use", "health"])
@pytest.mark.usefixtures("read_in_utf8")
def test_axe_finds_no_fault_in_any_colour(
    chromium: Browser, reported: Reported, tmp_path: Path, hosts: int, width: int, scheme: str, colour: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    document = many(reported.document, hosts)
    opened_page = page_in(chromium, tmp_path / "page.html", document, width=width, scheme=scheme)
    opened_page.page.locator("select[name=colour]").select_option(colour)
    violations = Axe().run(opened_page.page).response["violations"]
    assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= width
    opened_page.page.close()
    assert [
        (violation["impact"], violation["id"], violation["nodes"][0]["html"][:120]) for violation in violations
    ] == []
