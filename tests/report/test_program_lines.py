"""What programs in guests print never reaches a terminal raw, whatever it is and however it is broken into pieces."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.clusters.view import LONGEST_LINE, ProgramLines
from gpuops.model.vcenter.target import WITHHELD, Secret

PASSWORD = "Kept4now"
HOSTILE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [
            b"\x1b]0;title\x07\x1b[2J\x1b[31m",
            b"\x9b31m \xc2\x9b31m",
            "a\u202eb\u2028c\u200b".encode(),
            b"$(reboot) `id` ; rm -rf ~ | sh > /dev/null &\n",
            b"\r\n50%\r100%\n\n",
            b"Kept4now",
            b"\x00\x08\x7f",
        ]
    ),
)


def lines_shown(pieces: list[bytes], *withheld: Secret) -> list[str]:
    lines = ProgramLines(withheld)
    return [line for piece in pieces for line in lines.add_output(piece)] + list(lines.end())


def broken(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(st.lists(HOSTILE, max_size=12).map(b"".join), st.lists(st.integers(0, 3000), max_size=8))
def test_no_character_of_it_is_a_control_and_pieces_change_nothing(text: bytes, cuts: list[int]) -> None:
    lines = lines_shown(broken(text, cuts), Secret(PASSWORD))
    assert lines == lines_shown([text], Secret(PASSWORD))
    for line in lines:
        assert all(
            unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
            for character in line.replace("\t", "")
        )
        assert PASSWORD not in line and len(line) <= 10 * LONGEST_LINE


def test_it_is_still_readable() -> None:
    text = b"epoch 1\tloss 0.5\r\n\x1b[31mred\x1b[0m \xff\n\xc3\xa4 last"
    assert lines_shown([text]) == ["epoch 1\tloss 0.5", "", r"\u{1b}[31mred\u{1b}[0m \xff", "\u00e4 last"]


@given(
    st.integers(0, 40),
    st.integers(1, 20),
    st.sampled_from(["s3cret", "a longer one than what stands in its place " * 3]),
)
def test_a_password_is_withheld_wherever_a_long_line_is_broken(shift: int, times: int, password: str) -> None:
    text = ("x" * (LONGEST_LINE - shift) + password) * times
    pieces = broken(text.encode(), list(range(0, len(text), 1000)))
    lines = lines_shown(pieces, Secret(password))
    assert "".join(lines) == text.replace(password, WITHHELD)
    assert len(lines) >= times and all(len(line) <= LONGEST_LINE + 300 for line in lines)


def test_megabytes_without_an_end_of_line_are_broken_into_lines() -> None:
    lines = lines_shown([b"y" * 65536] * 64)
    assert "".join(lines) == "y" * (4 << 20) and max(map(len, lines)) <= LONGEST_LINE
