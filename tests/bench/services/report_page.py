"""The page of `gpuops report` of a simulated fleet: how large it is, and how soon a browser shows it.

The first paint is what Chromium itself notes as first-contentful-paint; the map is drawn when the load has ended. The
page is written by the user's own command, and opened from disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.verdict import Figure, Result

SIZES: Final = ((200, 2.0), (1000, 5.0))
"""Hosts, and the most MB of a page."""
OPENED: Final = 5
PAINT_S: Final = 2.0
_PAINTED: Final = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_LOADED: Final = (
    "() => performance.timing.loadEventEnd > 0 && performance.timing.loadEventEnd - performance.timing.fetchStart"
)


def run() -> Result:
    """Without Chromium there are no figures, and RESULTS.md keeps those it has."""
    chromium = shutil.which("chromium")
    title = "the page of `gpuops report`"
    if chromium is None:
        return Result(f"{title}: needs a browser, apt-get install chromium", ())
    with tempfile.TemporaryDirectory() as folder:
        return Result(title, tuple(_figures(chromium, Path(folder))))


def _figures(chromium: str, folder: Path) -> Iterator[Figure]:
    for hosts, most_mb in SIZES:
        page = folder / f"{hosts}.html"
        fleet = f"sim:fleet:hosts={hosts},vms={10 * hosts}"
        command = [sys.executable, "-m", "gpuops", "report", "--html", str(page), "--vcenter", fleet]
        environment = {**os.environ, "HOME": str(folder)}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        painted_s, loaded_s = _opened(chromium, page)
        told = f"{hosts} hosts, {10 * hosts} VMs"
        yield Figure(f"{told}: size", page.stat().st_size / 1e6, "MB", most_mb)
        yield Figure(f"{told}: first paint", painted_s, "s", PAINT_S)
        yield Figure(f"{told}: the whole map is drawn", loaded_s, "s")


def _opened(chromium: str, page: Path) -> tuple[float, float]:
    """Seconds until the first paint and until all is drawn, the median of some openings."""
    from playwright.sync_api import sync_playwright

    painted, loaded = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(OPENED):
            window = browser.new_page(viewport={"width": 1280, "height": 900})
            window.goto(page.as_uri(), wait_until="commit")
            painted.append(float(window.wait_for_function(_PAINTED).json_value()) / 1000)
            loaded.append(float(window.wait_for_function(_LOADED).json_value()) / 1000)
            window.close()
        browser.close()
    return median(painted), median(loaded)
