"""Debian's Chromium, one for all tests of a file: while it runs, playwright's loop is the one of the process, and no
test of asyncio could have its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


WITHIN_MS: Final = 60_000
"""How long `expect` waits for what a page is to show: a busy machine shows it late."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Without it: fail in CI, where .ci/run installs it; skip elsewhere, saying what to type."""
    from playwright.sync_api import expect, sync_playwright

    program = shutil.which("chromium")
    if program is None:
        message = "needs a browser: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        # root, as in a container, has no sandbox; the pages are our own
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
