"""Lines, tables and trees as they are printed: whole in a pipe, fitted to the width of a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.report.layout import Shown, Text, TextTable, Tree, cut_off, display_width, lines, padded, plain, shortened


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
    for view, count in zip(views, (1, 1, 2, 2, 2, 2), strict=True):
        printed = printed_lines(view)
        assert len(printed) == count
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
