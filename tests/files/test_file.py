"""JSON that a program may send and no text can hold: half of a surrogate pair; the next move for an unread file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import UsageError
from gpuops.files.file import parse_json, read_bytes


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"',
        r'{"name": ["\uDFFF"]}',
        r'{"\udc00": 1}',
        r'"\ud83d \ude00"',
        '"\ud800"',
        b'"\xed\xa0\x80"',
        '"\\ud800"'.encode("utf-16"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"half of a surrogate pair|can't decode byte"):
        parse_json(text)


def test_a_pair_is_one_character() -> None:
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    assert parse_json(r'"\\ud800"') == r"\ud800"
    assert parse_json('"é"'.encode("utf-16")) == "é"


def test_a_look_is_advised_at_a_file_that_is_there_only(tmp_path: Path) -> None:
    directory = tmp_path / "there"
    directory.mkdir()
    (tmp_path / "file").touch()
    hints = []
    for path in (directory, tmp_path / "file" / "below", tmp_path / "missing", Path("a\0b")):
        with pytest.raises(UsageError) as refused:
            read_bytes(path)
        hints.append(refused.value.hint)
    assert hints == [f"look at it: ls -l {directory}", *["check the path"] * 3]
