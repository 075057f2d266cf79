"""No secret of anybody's is in the tree; and the patterns know one when they see it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.rules.leaks import PATTERNS, leaks, leaks_in

ROOT: Final = Path(__file__).resolve().parents[2]
# in two parts each, or this file would be the first one found
BAD: Final = {
    "private key": "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEow",
    "AWS key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "GitHub token": "ghp_" + "a" * 36,
    "GitLab token": "glpat-" + "a" * 20,
    "PyPI token": "pypi-" + "AgEI" + "a" * 60,
    "Slack token": "xoxb-" + "1234567890-abc",
    "Google key": "AIza" + "a" * 35,
    "signed token": "eyJ" + "a" * 30 + ".eyJ" + "b" * 30 + "." + "c" * 30,
    "licence token": "-".join(["A1B2C"] * 5),
    "password in a URL": "postgresql://gpuops:" + "longer-than-eight@pg.example.org/j",
    "a home": "/home/" + "somebody/project",
}
GOOD: Final = (
    "-----BEGIN CERTIFICATE-----\nMIIE",
    "postgresql://gpuops@db.example.com/gpuops",
    "https://u:pw@vc.example.com",
    "password_file: /etc/gpuops/prod",
    "0123456789abcdef" * 4,
    "56c2a5ae-70e8-5025-b71c-90eeb0b3fa35",
)


@pytest.mark.parametrize("kind", BAD)
def test_one_is_known_and_not_repeated(kind: str) -> None:
    [leak] = leaks(f"first line\n{BAD[kind]}\n", "file.txt")
    assert leak == f"file.txt:2: {kind}"


@pytest.mark.parametrize("text", GOOD)
def test_what_only_looks_like_one_is_let_pass(text: str) -> None:
    assert list(leaks(text, "file.txt")) == []


def test_every_kind_has_an_example() -> None:
    assert set(BAD) == set(PATTERNS)


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a checkout")
def test_none_is_in_the_tree() -> None:
    assert leaks_in(ROOT) == []
