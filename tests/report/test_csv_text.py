"""CSV that a spreadsheet opens without computing anything, and reads back as it was meant."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.report.json_and_csv import csv_text
from gpuops.report.sites import merged_csv

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
