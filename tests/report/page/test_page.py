"""The page: without a browser, nothing ends its element and its policy fits; in one, it can be read by everybody."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from gpuops.advise.gpu_hours import showback
from gpuops.extras.web.page.fleet_report_text import FOCUS_COLUMNS, focus_csv
from gpuops.extras.web.page.html import merge_findings, page
from gpuops.extras.web.page.html import page as page_of
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.report.layout import visible
from tests.report.page.conftest import Reported, open_page

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "</script><script>alert(3)</script>", "<!--", "]]>",
    "{{ 7 * 7 }}", "&amp;", "שלום-01", "vdi \U0001f600", "a\u202eb\u2028c", "'; alert(4) //", "=1+1",
)  # fmt: skip
"""Names that VMs, hosts and owners may have."""


def rename_all(value: Any, names: dict[str, str]) -> Any:
    """The document with each of these texts in the place of another."""
    if isinstance(value, dict):
        return {key: rename_all(child, names) for key, child in value.items()}
    if isinstance(value, list):
        return [rename_all(child, names) for child in value]
    return names.get(value, value) if isinstance(value, str) else value


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """The same report with hostile names of VMs, hosts, clusters, owners and folders."""
    texts = [vm["name"] for vm in document["vms"]] + [host["name"] for host in document["hosts"]]
    texts += [host["cluster"] for host in document["hosts"]] + [vm["path"] for vm in document["vms"]]
    texts += [owner["owner"] for owner in document["showback"]["owners"]] + ["lab-night"]
    texts += [finding_row["reason"] for finding_row in document["findings"]]
    named = {
        text: f"{HOSTILE[number % len(HOSTILE)]}-{number}" for number, text in enumerate(dict.fromkeys(texts)) if text
    }
    renamed_document: dict[str, Any] = rename_all(document, named)
    return renamed_document


class Elements(HTMLParser):
    """The tags of a page, and what stands in its script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside[-1]][-1] += data


def test_hostile_names_add_no_element_and_no_attribute(reported: Reported) -> None:
    usual, bad = Elements(page(reported.document)), Elements(page(hostile(reported.document)))
    assert [tag for tag, _ in bad.tags] == [tag for tag, _ in usual.tags]
    assert [sorted(attributes) for _, attributes in bad.tags] == [sorted(attributes) for _, attributes in usual.tags]


def test_the_page_carries_its_document_whole(reported: Reported) -> None:
    for document in (reported.document, hostile(reported.document)):
        script, _ = Elements(page(document)).texts["script"]
        assert "<" not in script
        assert json.loads(script) == document


def test_the_policy_lets_its_one_script_and_one_style_run_and_nothing_load(reported: Reported) -> None:
    elements = Elements(page(reported.document))
    [policy] = [at["content"] or "" for tag, at in elements.tags if at.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    [style], (_, script) = elements.texts["style"], elements.texts["script"]
    for directive, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives.pop(directive) == f"'sha256-{digest}'"
    assert directives == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    loads = [
        value for _, at in elements.tags for name, value in at.items() if name in ("src", "href", "action", "srcset")
    ]
    assert all((value or "").startswith(("#", "data:,")) for value in loads)
    assert not any(name == "style" or name.startswith("on") for _, at in elements.tags for name in at)
    assert not re.search(r"\b(fetch|XMLHttpRequest|innerHTML|outerHTML|insertAdjacentHTML|eval)\b", script)


def test_findings_that_differ_in_their_subject_alone_are_one() -> None:
    def finding(subject: str, reason: str) -> dict[str, str]:
        return {"severity": "warning", "subject": subject, "reason": reason, "fix": "gpuops host mode set"}

    findings = merge_findings([finding("esx-1", "a"), finding("esx-2", "b"), finding("esx-3", "a")])
    assert [(row["reason"], row["subjects"]) for row in findings] == [("a", ["esx-1", "esx-3"]), ("b", ["esx-2"])]


@pytest.mark.parametrize("by_itself", [False, True])
def test_the_table_of_focus_has_a_line_for_each_run_and_no_formula(by_itself: bool) -> None:
    begins = datetime(2026, 12, 31, 20, tzinfo=UTC)
    periods = (HeldPeriod(begins, begins + timedelta(hours=8), by_itself),)
    vm = PastVm("vm-1", "uuid-1", "=cmd|' /C calc'!A0", Role.ML, ("a40-24c",), 0.5, periods, closed=True)
    night = PastNight("2026-12-31", "vc", begins, "policy", (), (vm,), ())
    [line] = csv.DictReader(io.StringIO(focus_csv(showback([night], lambda vm: "@owner"))))
    assert tuple(line) == FOCUS_COLUMNS
    assert (line["ResourceName"], line["SubAccountName"]) == ("'=cmd|' /C calc'!A0", "'@owner")
    assert (line["ConsumedQuantity"], line["ConsumedUnit"]) == ("" if by_itself else "4.0", "GPU-Hours")
    assert line["x_GpuHoursAtLeast"] == ("0.0" if by_itself else "4.0")
    assert (line["ChargePeriodStart"], line["ChargePeriodEnd"]) == ("2026-12-31T20:00:00Z", "2027-01-01T04:00:00Z")
    assert (line["BillingPeriodStart"], line["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")


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
