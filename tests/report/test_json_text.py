"""Text as it is printed: JSON, CSV, lines, tables, units, the ledger, and no control character from vCenter."""

from __future__ import annotations

import csv
import io
import json
import sys
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.report.document import as_values
from gpuops.report.first_steps.simulator_view import ledger_document, ledger_text
from gpuops.report.json_and_csv import csv_text, document_pieces, document_text
from gpuops.report.layout import (
    Shown,
    Text,
    TextTable,
    Tree,
    cut_off,
    display_width,
    lines,
    padded,
    plain,
    shortened,
    visible,
)
from gpuops.report.sites import merged_csv
from gpuops.report.text import count, size


class Power(StrEnum):
    ON = "poweredOn"


class Owned(str):
    """A text of a library's own class."""


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),  # lone surrogates among them
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters()), VALUES, min_size=1, max_size=5))
def test_any_document_is_read_as_it_was(document: dict[str, Any]) -> None:
    text = document_text(document)
    assert all(character == "\n" or " " <= character <= "~" for character in text)
    assert json.loads(text) == document


NAME = "山\x9b\x7f\u202e\udc80"
DOCUMENT = {"power": Power.ON, "of": Owned("x"), "empty": [], "none": {}, "name": NAME, "two": (1, None)}


def test_the_text_is_laid_out_as_it_always_was() -> None:
    assert document_text({**DOCUMENT, "hosts": [{"a": [1, {"b": "é\n"}]}, {}]}) == (
        json.dumps({**DOCUMENT, "hosts": [{"a": [1, {"b": "é\n"}]}, {}]}, indent=2) + "\n"
    )


def test_records_are_made_when_they_are_written() -> None:
    numbers_made: list[int] = []

    def records() -> Any:
        for number in range(3):
            numbers_made.append(number)
            yield {"number": number}

    written = document_pieces({"kind": "x", "records": records(), "total": 3})
    numbered_pieces = []
    for piece in written:
        numbered_pieces.append((piece.strip(), len(numbers_made)))
    assert [number for piece, number in numbered_pieces if '"number"' in piece] == [1, 2, 3]
    assert json.loads(document_text({"records": iter(())})) == {"records": []}


def test_what_is_no_value_of_a_document_is_told() -> None:
    with pytest.raises(TypeError, match="object is not a type of values in documents"):
        document_text({"x": object()})


SIGNS = "=+-@\t\r\n＝＋－＠"


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("before", ["", " ", "  "])
def test_no_cell_begins_with_a_sign_of_a_formula(sign: str, before: str) -> None:
    [_, [cell]] = read(csv_text(("name",), [(f"{before}{sign}cmd|' /C calc'!A0",)]))
    assert cell.startswith("'")


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_every_name_is_one_cell_that_computes_nothing(names: list[str]) -> None:
    _, *rows = read(csv_text(["name"], [[name] for name in names]))
    assert len(rows) == len(names)
    assert not any(cell.lstrip(" ").startswith(tuple(SIGNS)) for [cell] in (row or [""] for row in rows))


def test_figures_moments_and_what_is_unknown() -> None:
    row = (1, -0.5, None, datetime(2026, 11, 20, 21, tzinfo=UTC), "a, b", True)
    assert csv_text(("n",) * 6, [row]) == 'n,n,n,n,n,n\n1,-0.5,,2026-11-20T21:00:00+00:00,"a, b",True\n'


def test_a_table_of_several_sites_computes_nothing_of_their_names() -> None:
    assert merged_csv({"=1+1": "vm\nml-01\n", "@muc": "vm\n'=x\n"}) == "site,vm\n'=1+1,ml-01\n'@muc,'=x\n"


def printed_lines(view: Shown, width: int | None = None, *, ascii_only: bool = False) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines(view, width, ascii_only=ascii_only)]


def table(*rows: tuple[str | Text, ...], right: tuple[int, ...] = ()) -> TextTable:
    text_table = TextTable("VM", "GPUs", right=right)
    for row in rows:
        text_table.add_row(*row)
    return text_table


def tree() -> Tree:
    host = Tree(Text("host"))
    host.add(Text("node 0")).add(Text("a GPU with a name"))
    host.add(Text("node 1"))
    return host


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert plain(table(("ml-01", "2"), ("a", "10"), right=(1,))) == "VM     GPUs\nml-01     2\na        10\n"


def test_a_character_of_two_columns_counts_twice() -> None:
    printed = printed_lines(table(("山田", "1"), ("abcde", "2")))
    assert printed == ["VM     GPUs", "山田   1", "abcde  2"]
    assert {display_width(line.rpartition(" ")[0]) for line in printed} == {6}


def test_cells_with_styles_stand_where_others_stand() -> None:
    bold = Text("ml").append("-01", "bold")
    assert plain(table((bold, "2"), ("a", "10"), right=(1,))) == plain(table(("ml-01", "2"), ("a", "10"), right=(1,)))


@pytest.mark.parametrize("width", [7, 10, 20, 40])
def test_no_line_of_a_table_is_wider_than_the_terminal_and_no_character_is_lost(width: int) -> None:
    row = ("desk-0001.example.com", "vGPU grid_a40-8q, vGPU grid_a40-8q")
    printed = printed_lines(table(row), width)
    assert max(map(len, printed)) <= width
    assert sorted("".join(printed).replace(" ", "")) == sorted("".join(("VM", "GPUs", *row)).replace(" ", ""))


def test_a_table_without_rows_or_headers() -> None:
    assert printed_lines(table()) == ["VM  GPUs"]
    assert printed_lines(TextTable()) == []


def test_a_long_line_is_wrapped_between_words_and_inside_one_that_is_longer() -> None:
    assert printed_lines(Text("a note of ").append("several", "bold").append(" words"), 10) == [
        "a note of",
        "several",
        "words",
    ]
    assert printed_lines("abcdefghij kl", 4) == ["abcd", "efgh", "ij", "kl"]


def test_styles_stay_with_their_text_where_a_line_is_wrapped() -> None:
    text = Text("first ").append("second third", "red")
    assert list(lines(text, 12)) == [[("first ", ""), ("second", "red")], [("third", "red")]]


@settings(max_examples=500, derandomize=True)
@given(st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp"]) | st.characters(), min_size=1))
def test_no_text_from_elsewhere_ends_a_line_or_reaches_a_terminal_unescaped(name: str) -> None:
    """In any part of a view, at any width: a name is on one line, and no character of it is a control character."""
    titled = TextTable(name, "GPUs", right=(0,), whole=(0,))
    titled.add_row(Text("in ").append(name, "bold").append(Text(name, "red")), name)
    parent = Tree(Text(name))
    parent.add(Text("in ").append(name))
    views: tuple[Shown, ...] = (name, Text(name), (Text(name), name), table((name, "1")), titled, parent)
    for view, line_count in zip(views, (1, 1, 2, 2, 2, 2), strict=True):
        printed = printed_lines(view)
        assert len(printed) == line_count
        assert all(map(is_escaped, printed + printed_lines(view, 12)))
    assert all(map(is_escaped, (shortened(name, 9), cut_off(name, 9), *padded((name, "a")))))


def is_escaped(line: str) -> bool:
    return {"Cc", "Cf", "Cs", "Zl", "Zp"}.isdisjoint(map(unicodedata.category, line))


def test_the_end_of_a_long_text_becomes_three_dots() -> None:
    assert (cut_off("abcdef", 6), cut_off("abcdefg", 6), cut_off("a\n", 6), cut_off("abc\n", 6)) == (
        "abcdef",
        "abc...",
        "a\\u{a}",
        "abc...",
    )


def test_texts_are_filled_up_to_the_longest() -> None:
    assert padded(("a", "bc\n")) == ["a      ", "bc\\u{a}"]


def test_a_tree_has_guides_that_go_down_beside_what_is_wrapped() -> None:
    assert printed_lines(tree()) == ["host", "├── node 0", "│   └── a GPU with a name", "└── node 1"]
    narrow = printed_lines(tree(), 18)
    assert narrow == ["host", "├── node 0", "│   └── a GPU with", "│       a name", "└── node 1"]


def test_a_tree_where_only_ascii_is_known() -> None:
    assert printed_lines(tree(), ascii_only=True) == ["host", "+-- node 0", "|   `-- a GPU with a name", "`-- node 1"]


@pytest.mark.parametrize(
    ("mib", "text"), [(None, "unknown"), (0, "0 MiB"), (512, "512 MiB"), (1536, "1.5 GiB"), (65536, "64 GiB")]
)
def test_size(mib: float | None, text: str) -> None:
    assert size(mib) == text


def test_count() -> None:
    assert (count(1, "host"), count(0, "host"), count(2, "host")) == ("1 host", "0 hosts", "2 hosts")


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


Render = Callable[[Shown], str]

ENTRY = {
    "sequence": 7,
    "at": "2026-11-02T18:00:05+00:00",
    "user": "me",
    "session": "s",
    "operation_id": "o",
    "method": "PowerOnVM_Task",
    "object_type": "VirtualMachine",
    "moid": "vm-1",
    "name": "ml-07\x1b",
    "before": {"power": "poweredOff", "host": "host-1", "note": ""},
    "after": {"power": "poweredOn", "host": "host-1", "note": "x"},
}


def test_a_line_per_effect_and_what_changed_below_it(plain: Render) -> None:
    assert plain(ledger_text([ENTRY])).splitlines() == [
        "   7  2026-11-02T18:00:05+00:00  PowerOnVM_Task ml-07\\u{1b}  by me",
        "      power  poweredOff -> poweredOn",
        "      note  none -> x",
    ]


def test_nothing_done_is_said(plain: Render) -> None:
    assert plain(ledger_text([])) == "nothing was done\n"
    assert as_values(ledger_document([])) == {"schema_version": 1, "kind": "ledger", "entries": []}
