"""`make pictures`: the two pictures of the README, of the page that `gpuops report` makes of a simulated vCenter."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from gpuops import clock
from gpuops.cli.app import app
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client

FOLDER: Final = Path(__file__).parent / "pictures"
WIDTH, HEIGHT = 1100, 640
POLICY: Final = """
version: 1
name: office-night
broker: horizon
windows: [{opens: "20:00", closes: "05:00", back_by: "06:30", zone: UTC}]
pools:
  - name: office
    parked: false
    select: {folder: vdi, name: "vdi-*", profile: "*-8q"}
    idle: {cpu_below_mhz: 500}
    owner: none
ml:
  queue: [{vm: ml-01}, {vm: ml-02}, {vm: "ml-0[6-9]"}]
"""


def write_report(folder: Path) -> Path:
    """The page of the scenario `vdi` in the middle of its second night."""
    page, ready, policy = folder / "fleet.html", folder / "ready.json", folder / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    with start("vdi", clock="stepped") as server:
        server.serve_horizon()
        sim_client.write(ready, sim_client.of(server))

        def at(text: str, *words: str) -> None:
            clock.set_ahead(datetime.fromisoformat(text).replace(tzinfo=UTC) - clock.machine_time())
            server.world.clock.advance((clock.wall_clock() - server.world.clock.now()).total_seconds())
            result = CliRunner().invoke(app, [*words, "--vcenter", f"sim@{ready}", "--policy", str(policy)])
            if result.exit_code:
                sys.exit(result.output)

        at("2026-11-24T20:02", "rotate", "night", "--yes")
        at("2026-11-25T05:10", "rotate", "day", "--yes")
        at("2026-11-25T20:02", "rotate", "night", "--yes")
        at("2026-11-26T03:30", "report", "--html", str(page))
    return page


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("needs a browser: apt-get install chromium", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.environ["HOME"] = folder  # no configuration and no journal of this machine
        path = write_report(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        window.goto(path.as_uri())
        for name, heading in (("map", "h1"), ("night", "#night")):
            window.locator(heading).evaluate("heading => heading.scrollIntoView()")
            window.screenshot(path=FOLDER / f"{name}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
