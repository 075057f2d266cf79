"""The manual: every topic listed and shown, nothing of it read or rendered before it is asked for.

That its command lines exist and its examples print what stands there is held by `tests/test_docs.py`.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import Result

from gpuops.cli import output
from gpuops.cli.app import app

Gpuops = Callable[..., Result]
MANUAL = Path(__file__).resolve().parents[2] / "gpuops" / "manual"
PAGES = sorted(MANUAL.glob("*.md"))
TOPICS = [page.stem for page in PAGES]


def test_the_manual_has_the_topics_people_ask_for() -> None:
    assert TOPICS == [
        "ansible",
        "attach",
        "change",
