"""Leaks: text that looks like a secret of somebody's. A few patterns with few false alarms, for the whole tree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PATTERNS: Final = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s*[A-Za-z0-9+/=\\]"),
    "AWS key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b"),
    "GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}\b"),
    "PyPI token": re.compile(r"\bpypi-AgEI[A-Za-z0-9_-]{50,}"),
    "Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}\b"),
    "Google key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "signed token": re.compile(r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    "licence token": re.compile(r"\b[A-Z0-9]{5}(?:-[A-Z0-9]{5}){4}\b"),
    "password in a URL": re.compile(
        r"\b[a-z][a-z0-9+]*://[^\s/:@\"'{}<>$]+:(?!\*|\.\.\.|PASSWORD\b)[^\s/@\"'{}<>$]{8,}@(?!vc\b|db\b)"
    ),
    "a home": re.compile(r"(?<![A-Za-z0-9_.~-])/(?:home|Users)/(?!op\b|me\b|user\b|USER\b)[a-z][a-z0-9_-]+/"),
}
SIGNS: Final = {
    "AWS key": ("AKIA", "ASIA"),
    "GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "GitLab token": ("glpat-",),
    "PyPI token": ("pypi-",),
    "Slack token": ("xox",),
    "Google key": ("AIza",),
    "signed token": ("eyJ",),
    "password in a URL": ("://",),
    "a home": ("/home/", "/Users/"),
}
"""Of each kind what its pattern cannot be without: a text that has none of them is not searched for the pattern."""
_LARGEST: Final = 2 * 1024 * 1024


def leaks(text: str, path: str) -> Iterator[str]:
    """A line for each: place and kind, never the text itself."""
    for kind, pattern in PATTERNS.items():
        if not any(sign in text for sign in SIGNS.get(kind, ("",))):
            continue
        for match in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {kind}"


def leaks_in(root: Path) -> list[str]:
    """The same of every file that git would keep."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, encoding="utf-8", check=True,
    ).stdout.split("\0")  # fmt: skip
    leaks_found: list[str] = []
    for name in filter(None, listed):
        path = root / name
        if path.is_file() and path.stat().st_size <= _LARGEST:
            leaks_found += leaks(path.read_text(encoding="utf-8", errors="replace"), name)
    return leaks_found
