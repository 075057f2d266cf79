"""How the page is read: in any width and colour, by keyboard, on paper, by assistive programs, and with bad names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from gpuops.extras.web.page.html import page as page_of
from gpuops.report.layout import visible
from tests.report.page.conftest import Reported, open_page
from tests.report.page.test_page import HOSTILE, hostile


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_it_is_as_wide_as_its_window_loads_nothing_and_complains_of_nothing(
    chromium: Browser, reported: Reported, width: int, scheme: str
) -> None:
    opened_page = open_page(chromium, reported.path, width=width, scheme=scheme)
    assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in opened_page.requests if not url.startswith("data:")] == [reported.path.as_uri()]
    assert opened_page.complaints == []
    opened_page.page.close()


@pytest.mark.usefixtures("read_in_utf8")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_axe_finds_no_fault(chromium: Browser, reported: Reported, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened_page = open_page(chromium, reported.path, width=width, scheme=scheme)
    violations = Axe().run(opened_page.page).response["violations"]
    opened_page.page.close()
    assert [
        (violation["impact"], violation["id"], violation["nodes"][0]["html"][:120]) for violation in violations
    ] == []


@pytest.mark.long
def test_the_map_is_one_stop_of_the_tab_key_and_arrows_walk_it(page: Page) -> None:
    assert page.locator("#fleet button[tabindex='0']").count() == 1
    page.locator("#fleet button[tabindex='0']").focus()
    focused = [page.evaluate("document.activeElement.textContent")]
    for key in ("ArrowRight", "ArrowDown", "End", "Home"):
        page.keyboard.press(key)
        focused.append(page.evaluate("document.activeElement.textContent"))
    buttons = page.locator("#fleet button").all_text_contents()
    assert focused == [buttons[0], buttons[1], buttons[2], buttons[-1], buttons[0]]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#fleet')") is None


@pytest.mark.long
@pytest.mark.parametrize("how", ["hover", "focus"])
def test_a_vm_tells_of_itself_on_hover_and_on_focus(page: Page, reported: Reported, how: str) -> None:
    vm = next(vm for vm in reported.document["vms"] if vm["name"] == "vdi-07")
    slot = page.locator(f"#fleet .slot[data-vm='{vm['ref']}']")
    getattr(slot, how)()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert slot.get_attribute("aria-describedby") == "tip"
    tooltip = tip.inner_text()
    assert all(text in tooltip for text in ("vdi-07", "desktop, on", "nvidia_a40-8q", "17 % of NVIDIA A40", vm["path"]))
    page.keyboard.press("Escape")
    assert tip.is_hidden()


@pytest.mark.long
def test_on_paper_every_vm_and_every_row_is_there(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    """Also where a table is so long that the screen scrolls it."""
    [night] = reported.document["nights"]
    document = {**reported.document, "nights": [{**night, "night": f"night-{number}"} for number in range(90)]}
    path = tmp_path / "long.html"
    path.write_text(page_of(document), encoding="utf-8")
    page = open_page(chromium, path).page
    cut = "[...document.querySelectorAll('.lanes, .tall')].filter(e => e.scrollHeight > e.clientHeight + 1).length"
    assert page.evaluate(cut) > 0
    page.emulate_media(media="print")
    assert page.evaluate(cut) == 0
    text = page.evaluate("document.body.innerText")
    assert all(vm["name"] in text for vm in document["vms"])
    assert all(night_row["night"] in text for night_row in document["nights"])
    assert page.locator("nav").is_hidden()
    page.close()


@pytest.mark.long
def test_without_its_script_the_tables_are_there(chromium: Browser, reported: Reported) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(reported.path.as_uri())
    text = page.locator("body").inner_text()
    assert "which this browser does not run" in text
    assert reported.document["nights"][0]["night"] in text
    assert page.locator("form").is_hidden()
    context.close()


@pytest.fixture
def hostile_page(reported: Reported, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    document = hostile(reported.document)
    path = tmp_path / "hostile.html"
    path.write_text(page_of(document), encoding="utf-8")
    return document, path


@pytest.mark.long
def test_hostile_names_are_text(chromium: Browser, hostile_page: tuple[dict[str, Any], Path]) -> None:
    document, path = hostile_page
    opened_page = open_page(chromium, path, width=390)
    texts = set(opened_page.page.locator(".slot[data-vm], .chip").all_text_contents())
    texts = {re.sub(r" (on|off|suspended)$", "", text) for text in texts}
    names = {vm["name"] for vm in document["vms"]}
    assert texts == {visible(name) for name in names}
    assert {text for text in HOSTILE if any(text in name for name in names)} == set(HOSTILE)
    for button in opened_page.page.locator("#fleet button").all()[:20]:
        button.hover()
    assert opened_page.page.locator("img").count() == 0
    assert opened_page.page.locator("script").count() == 2
    assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened_page.complaints == []
    opened_page.page.close()


@pytest.mark.long
def test_long_names_make_nothing_wider(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    """80 characters is the longest name that vCenter takes."""
    document = {**reported.document, "vms": [{**vm, "name": "W" * 80} for vm in reported.document["vms"]]}
    document["hosts"] = [{**host, "name": "w" * 80, "cluster": "w" * 80} for host in document["hosts"]]
    document["findings"] = [{**row, "subject": "w" * 80} for row in document["findings"]]
    path = tmp_path / "long.html"
    path.write_text(page_of(document), encoding="utf-8")
    for width in (390, 1280):
        opened_page = open_page(chromium, path, width=width)
        assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= width
        opened_page.page.close()
