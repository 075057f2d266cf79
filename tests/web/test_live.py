"""The page in Chromium: it becomes what is there now by itself, and a name is text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gpuops.extras.web.http import web_server as server
from gpuops.extras.web.http.access import Access, PasswordLogin
from gpuops.model.vcenter.target import Secret
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import power_off
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.report.page.conftest import Opened
from tests.report.page.test_page import hostile
from tests.waiting import wait_until
from tests.web.conftest import Serve, Served, service


@pytest.fixture
def opened(chromium: Browser, served: Served) -> Iterator[Opened]:
    """The page with its map, which has nothing to complain of when the test is over."""
    opened_page = Opened(chromium.new_page(viewport={"width": 1280, "height": 900}))
    opened_page.page.goto(served.url)
    expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "current")
    expect(opened_page.page.locator("#fleet .gpu").first).to_be_visible()  # it is fetched after that
    yield opened_page
    opened_page.page.close()
    assert opened_page.complaints == []


def slots(page: Page) -> int:
    return page.locator("#fleet .slot[data-vm]").count()


def test_the_map_is_drawn_from_the_document_of_its_own_address(opened: Opened, served: Served) -> None:
    report = served.fleet.report
    gpus = [gpu for host in report["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]]
    expect(opened.page.locator("#fleet .gpu")).to_have_count(len(gpus))
    assert slots(opened.page) == sum(len(gpu["slots"]) for gpu in gpus)
    assert "This page is kept current." in opened.page.locator("#live").inner_text()
    assert {url.removeprefix(served.url) for url in opened.requests if not url.startswith("data:")} == {
        "/", "/page.css", "/page.js", "/events", "/api/report"
    }  # fmt: skip


def test_a_new_edition_takes_the_place_of_the_old_one_and_keeps_what_the_reader_set(
    opened: Opened, served: Served
) -> None:
    page = opened.page
    page.evaluate("window.sameWindow = true")
    page.locator('[name="text"]').fill("esx-01")
    counts_shown = page.locator('output[name="shown"]').inner_text()
    page.evaluate("scrollTo(0, 300)")
    for number in range(3):
        served.fleet.report = {**served.fleet.report, "policy": f"policy-{number}"}
        served.look()
        expect(page.locator("header .dim").first).to_contain_text(f"policy-{number}")
    expect(page.locator('[name="text"]')).to_have_value("esx-01")
    expect(page.locator('output[name="shown"]')).to_have_text(counts_shown)
    assert page.evaluate("window.sameWindow") is True, "it was not loaded anew"
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("document.activeElement.name") == "text"
    assert page.locator("#tip").count() == 1 and page.locator("#live").count() == 1
    page.locator("#fleet .slot[data-vm]").first.focus()
    expect(page.locator("#tip")).to_be_visible()


def test_the_banner_says_that_vcenter_is_away_and_that_it_is_back(opened: Opened, served: Served) -> None:
    live = opened.page.locator("#live")
    served.fleet.away = "vc <b>away</b>\u202e"
    served.look()
    expect(live).to_have_attribute("data-state", "away")
    expect(live).to_contain_text("vCenter is not followed: vc <b>away</b>\\u{202e}")
    expect(live).to_contain_text("vCenter was read")
    assert slots(opened.page) > 0, "the map stays"
    served.fleet.away = ""
    served.look()
    expect(live).to_have_attribute("data-state", "current")


def test_a_page_that_was_opened_before_the_first_read_becomes_the_report(chromium: Browser, serve: Serve) -> None:
    served = serve()
    opened_page = Opened(chromium.new_page())
    opened_page.page.goto(served.url)
    expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "away")
    served.look()
    expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "current")
    expect(opened_page.page.locator("#fleet .gpu").first).to_be_visible()
    opened_page.page.close()
    assert opened_page.complaints == []


def test_hostile_names_are_text_in_each_edition(
    chromium: Browser, serve: Serve, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_served = serve(report=served.fleet.report)
    hostile_served.look()
    opened_page = Opened(chromium.new_page())
    opened_page.page.goto(hostile_served.url)
    expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "current")
    hostile_served.fleet.report = hostile(hostile_served.fleet.report)
    hostile_served.look()
    expect(opened_page.page.locator("#fleet")).to_contain_text("<script>alert(1)</script>")
    assert opened_page.page.locator("script").count() == 2 and opened_page.page.locator("img").count() == 0
    opened_page.page.close()
    assert opened_page.complaints == [], "nothing ran, and the policy refused nothing"


def test_what_the_policy_forbids_is_refused_by_the_browser(opened: Opened) -> None:
    """The judge of the test above: it would see an inline script or style, and one of another origin."""
    page = opened.page
    for script in (
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)",
        "const s = document.createElement('style'); s.textContent = 'body {color: red}'; document.body.append(s)",
        "fetch('http://127.0.0.1:1/').catch(() => {})",
    ):
        page.evaluate(script)
        wait_until(lambda: any("Content Security Policy" in complaint for complaint in opened.complaints))
        opened.complaints.clear()
    assert page.evaluate("window.ran") is None


def test_the_browser_s_own_login_reaches_events_and_documents(chromium: Browser, serve: Serve) -> None:
    password = "correct horse battery"
    served = serve(Access(PasswordLogin.parse(Secret(f"ann:{password}"), "logins")))
    served.look()
    context = chromium.new_context(http_credentials={"username": "ann", "password": password})
    opened_page = Opened(context.new_page())
    opened_page.page.goto(served.url)
    expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "current")
    expect(opened_page.page.locator("#fleet .gpu").first).to_be_visible()
    context.close()
    assert opened_page.complaints == []


def test_a_vm_that_is_powered_off_is_off_on_the_page_within_seconds(
    chromium: Browser, clean: Any, tmp_path: Path
) -> None:
    """From vCenter's own wait to the picture; nothing is loaded anew, and nothing is changed but by the other one."""
    with SimServer(build("lab", clock=ClockMode.REAL)) as server:
        with service(server, tmp_path) as (url, run):
            opened_page = Opened(chromium.new_page())
            opened_page.page.goto(url)
            expect(opened_page.page.locator("#live")).to_have_attribute("data-state", "current")
            with server.world.lock:
                seated_vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.state.seats)
            slots_of_vm = opened_page.page.locator(f'#fleet .slot[data-vm="{seated_vm.moid}"]')
            expect(slots_of_vm.first).to_be_visible()
            opened_page.page.evaluate("window.sameWindow = true")
            with server.world.lock:
                power_off(seated_vm, Rule(Effect.HAPPEN))
                server.world.changed.notify_all()
                effects_before = len(server.world.ledger)
            expect(slots_of_vm).to_have_count(0)
            assert opened_page.page.evaluate("window.sameWindow") is True
            opened_page.page.close()
            assert opened_page.complaints == []
            run.terminate()
            _, errors = run.communicate(timeout=60)
        assert run.returncode == 143 and "Traceback" not in errors
        assert len(server.world.ledger) == effects_before and list(server.world.sessions) == []
        assert server.world.bugs == []


@pytest.mark.long
def test_heartbeats_do_not_fetch_anything(opened: Opened, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.1)
    served.look()
    before = len(opened.requests)
    opened.page.wait_for_timeout(1500)
    assert len(opened.requests) == before
