"""The table of several sites: what it shows of each, its documents, and how it is kept current in a browser."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from gpuops.clock import passed_s
from gpuops.config.vcenter.sources import ConfiguredSite
from gpuops.errors import VcenterUnreachable
from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.current import Current, Edition, Overview, address_of
from gpuops.extras.web.http.web_server import WebServer, serving_sites
from gpuops.extras.web.page.html import site_figures
from gpuops.report.json_and_csv import document_text
from tests.report.page.conftest import Opened, Reported

pytestmark = pytest.mark.long

NAMES = ("fra", "a/b", "a", "x<script>&\u202e")


@dataclass
class Sites:
    """The server, and what the sites tell."""

    url: str
    server: WebServer
    overview: Overview
    report: dict[str, Any]
    number: int = 0

    def tell(self, site: str, *, trouble: str | None = None, gpus: int | None = None, lost: str = "") -> None:
        self.number += 1
        report = {**self.report, "use": {**self.report["use"], **({"gpus": gpus} if gpus is not None else {})}}
        make_edition = partial(self._made, site, document_text(report), lost)
        read = Edition(f"{self.number}", datetime(2026, 11, 2, 12, tzinfo=UTC), passed_s(), {"report": make_edition})
        current = Current(read, trouble)
        self.server.tell(current, site)
        self.server.tell(self.overview.tell(site, current, site_figures(report)))

    def _made(self, site: str, text: str, lost: str) -> bytes:
        if lost:
            raise VcenterUnreachable(lost)
        return text.encode()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30)


@pytest.fixture
def sites(reported: Reported) -> Iterator[Sites]:
    overview = Overview([ConfiguredSite(name, "Europe/Berlin", None, {"region": "emea"}) for name in NAMES])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        metrics = lambda name, now: f"{name or 'all'}\n".encode()  # noqa: E731
        messages: list[str] = []
        with serving_sites(listener, NAMES, Access(), metrics, messages.append) as server:
            server.tell(overview.unread())
            yield Sites(f"http://127.0.0.1:{listener.getsockname()[1]}", server, overview, dict(reported.document))
        assert messages == []


def test_nothing_is_read_yet(sites: Sites) -> None:
    assert sites.get("/healthz").status_code == 503
    page = sites.get("/").text
    assert "0 of 4 sites followed now" in page and page.count("it has not been read yet") == 4


@pytest.mark.long
def test_each_site_has_its_address_whatever_its_name_is(sites: Sites) -> None:
    for name in NAMES:
        sites.tell(name)
    for name in NAMES:
        assert sites.get(f"/{address_of(name)}healthz").status_code == 200
        assert sites.get(f"/{address_of(name)}metrics").text == f"{name}\n"
        assert sites.get(f"/{address_of(name)}api/report").json()["kind"] == "report"
    assert sites.get("/metrics").text == "all\n"
    assert sites.get(f"/{address_of('fra')}").headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.long
def test_one_that_is_away_is_named_and_its_last_figures_stay(sites: Sites) -> None:
    sites.tell("fra", gpus=9)
    sites.tell("a", gpus=4, trouble="vc-a is away")
    sites.tell("a/b", lost="a/b: its process has ended")
    page = sites.get("/").text
    assert "2 of 4 sites followed now" in page and "vc-a is away" in page and "2026-11-02 13:00 CET" in page
    document = sites.get("/api/report").json()
    assert list(document["sites"]) == ["fra"]
    assert {name: failure["message"] for name, failure in document["unreachable"].items()} == {
        "a/b": "a/b: its process has ended", "a": "vc-a is away", NAMES[3]: "it has not been read yet",
    }  # fmt: skip
    assert document["asked"]["fra"]["labels"] == {"region": "emea"}
    assert sites.get("/healthz").status_code == 200
    sites.tell("fra", trouble="it is away")
    sites.tell("a/b", trouble="it is away")
    assert sites.get("/healthz").status_code == 503


@pytest.mark.long
def test_the_table_in_a_browser_is_kept_current(sites: Sites, chromium: Browser) -> None:
    sites.tell("fra", gpus=9)
    opened = Opened(chromium.new_page())
    page = opened.page
    page.goto(sites.url)
    live, row = page.locator("#live"), page.locator("tr[data-site=fra] td")
    expect(live).to_have_attribute("data-state", "current")
    expect(row.nth(3)).to_have_text("9")
    page.evaluate("window.sameWindow = true")
    page.locator("#all a").first.focus()
    sites.tell("fra", gpus=10)
    expect(row.nth(3)).to_have_text("10")
    assert page.evaluate("document.activeElement.textContent") == "fra"
    sites.tell(NAMES[3], gpus=1)
    expect(page.locator("tfoot td").nth(3)).to_have_text("11")
    sites.tell("fra", trouble="vc <b>away</b>")
    expect(row.nth(1)).to_have_text("not followed: vc <b>away</b>")
    sites.tell(NAMES[3], trouble="away")
    expect(live).to_have_attribute("data-state", "away")
    expect(live).to_have_text("none of 4 vCenters is followed now")
    assert page.evaluate("window.sameWindow") is True, "it was not loaded anew"
    with page.expect_navigation():
        page.locator("#all a").last.click()
    assert json.dumps(page.url).endswith(f'{address_of(NAMES[3])}"')
    page.close()
    assert opened.complaints == []
