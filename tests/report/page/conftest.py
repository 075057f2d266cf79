"""A report of the scenario `lab` after three nights, as document and as page."""

from __future__ import annotations

import json
import locale
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client
from tests.cli.conftest import LAB_POLICY, new_home


@dataclass(frozen=True)
class Reported:
    """One report: what programs read, and the page that is made of it."""

    document: dict[str, Any]
    path: Path

    def gpus(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each host with each of its GPUs."""
        return ((host, gpu) for host in self.document["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"])


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Of the scenario `lab`, by day, with a night that took four desktops behind it."""
    folder = tmp_path_factory.mktemp("report")
    path, ready = folder / "fleet.html", folder / "ready.json"
    with pytest.MonkeyPatch.context() as patch, start("lab", clock="stepped") as server:
        new_home(folder / "home", patch)
        sim_client.write(ready, sim_client.of(server))

        def run(*words: str) -> str:
            result = CliRunner().invoke(app, [*words, "--vcenter", f"sim@{ready}"])
            assert result.exit_code == 0, result.output
            return result.stdout

        for half in ("night", "day"):
            run("rotate", half, "--policy", LAB_POLICY, "--yes")
        run("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--power", "on")
        printed = run("report", "--policy", LAB_POLICY, "--html", str(path), "--output", "json")
    return Reported(json.loads(printed), path)


class Opened:
    """A page in the browser, and all that it said or asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)


def open_page(browser: Browser, path: Path, *, width: int = 1280, scheme: Any = "light") -> Opened:
    """The page of that file, in a window so wide; the caller closes it."""
    new_opened = Opened(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme))
    new_opened.page.goto(path.as_uri())
    return new_opened


@pytest.fixture
def page(chromium: Browser, reported: Reported) -> Iterator[Page]:
    """The report's page, which has nothing to complain of when the test is over."""
    opened_page = open_page(chromium, reported.path)
    yield opened_page.page
    opened_page.page.close()
    assert opened_page.complaints == []


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def read_in_utf8() -> Iterator[None]:
    """For a package that opens its own files in the encoding of the locale, which is drawn: ASCII in C and POSIX."""
    drawn = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    yield
    locale.setlocale(locale.LC_CTYPE, drawn)
