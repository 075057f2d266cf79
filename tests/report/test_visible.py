"""Nothing that vCenter says may move a cursor, end a line or turn text around."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from gpuops.report.layout import visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ml-07", "ml-07"),
        ("Größe 山", "Größe 山"),
        ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
        ("a\nb\r", "a\\u{a}b\\u{d}"),
        ("\x9b31m", "\\u{9b}31m"),
        ("ab\u202edc", "ab\\u{202e}dc"),
        ("a\u2028b", "a\\u{2028}b"),
        ("\ud800", "\\u{d800}"),
    ],
)
def test_what_would_not_be_seen_is_written_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_no_character_of_unicode_gets_through_unseen() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    printed = visible(everything)
    assert {"Cc", "Cf", "Cs", "Zl", "Zp"}.isdisjoint({unicodedata.category(character) for character in printed})
    assert len(printed.splitlines()) == 1
