"""Answers of several sites as one: which tables become one, what is said once, which code counts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import pytest

from gpuops.report.json_and_csv import DocumentTexts, document_text
from gpuops.report.layout import Shown, Text, TextTable, Tree, plain
from gpuops.report.sites import (
    SiteAnswer,
    SiteFailure,
    blocks,
    common_failure,
    exit_code_of,
    merged_csv,
    sites_document,
    sites_text,
)

AT: Final = datetime(2026, 7, 1, 20, 0, tzinfo=UTC)
AWAY: Final = SiteFailure("vc does not answer", "look", 5, "vcenter-unreachable")
NO_CLUSTER: Final = SiteFailure("no cluster 'x'", "", 2, "usage-error")
DAMAGED: Final = SiteFailure("the journal is damaged", "", 7, "state-damaged")


def site_answer(site: str, *view: Shown, exit_code: int = 0, zone: str | None = None) -> SiteAnswer:
    return SiteAnswer(site, exit_code, AT, zone, view=blocks(view), kind="top", json=json.dumps({"of": site}))


def site_failure(site: str, failure: SiteFailure) -> SiteAnswer:
    return SiteAnswer(site, failure.exit_code, AT, failure=failure)


def table(*rows: tuple[str, str], headers: tuple[str, ...] = ("VM", "GPUs")) -> TextTable:
    text_table = TextTable(*headers, right=(1,), whole=(0,))
    for row in rows:
        text_table.add_row(*row)
    return text_table


def sites_shown(*answers: SiteAnswer) -> list[str]:
    return plain(sites_text(answers)).splitlines()


def test_tables_of_the_same_columns_are_one() -> None:
    first, two = site_answer("fra", table(("ml", "1"), ("cad", "12"))), site_answer("muc", table(("ml", "3")))
    assert sites_shown(first, two) == ["site  VM   GPUs", "fra   ml      1", "fra   cad    12", "muc   ml      3"]


def test_lines_are_said_once_where_all_say_the_same() -> None:
    first = site_answer("fra", ("head", table(("a", "1"))), "2 of 3", Text("hint"))
    two = site_answer("muc", ["head", table(("b", "2"))], "", Text("none"))
    assert sites_shown(first, two) == [
        "head", "site  VM  GPUs", "fra   a      1", "muc   b      2", "fra: 2 of 3", "fra: hint", "muc: none",
    ]  # fmt: skip


def test_a_site_without_a_table_has_its_line_among_the_others() -> None:
    assert sites_shown(site_answer("fra", table(("a", "1"))), site_answer("muc", "no VM has a GPU")) == [
        "muc: no VM has a GPU",
        "site  VM  GPUs",
        "fra   a      1",
    ]


@pytest.mark.parametrize(
    "view", [[Tree(Text("esx-01"))], [table(headers=("VM", "of"))], [table(), table()], ["a line alone"]]
)
def test_what_does_not_fit_together_stands_below_headings(view: list[Shown]) -> None:
    first = site_answer("fra", "a line" if view == ["a line alone"] else table(("a", "1")), zone="Europe/Berlin")
    printed = sites_shown(first, site_answer("muc", *view))
    assert printed[0] == "fra, 2026-07-01 22:00 CEST"
    assert "muc, 2026-07-01 20:00 UTC" in printed


def test_who_did_not_answer_is_named_last() -> None:
    printed = sites_shown(site_answer("fra", "x"), site_failure("muc", AWAY), site_failure("ber", NO_CLUSTER))
    assert printed[-2:] == ["", "1 of 3 sites answered; not reached: muc; failed: ber"]
    assert sites_shown(site_failure("muc", AWAY)) == ["0 of 1 site answered; not reached: muc"]


def test_a_name_cannot_write_lines() -> None:
    assert sites_shown(site_answer("f\nr", table(("a", "1"))))[1].startswith("f\\u{a}r")


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([site_answer("a"), site_answer("b")], 0),
        ([site_answer("a"), site_answer("b", exit_code=3)], 3),
        ([site_answer("a", exit_code=7), site_answer("b", exit_code=3)], 7),
        ([site_answer("a"), site_failure("b", AWAY)], 4),
        ([site_answer("a", exit_code=7), site_failure("b", AWAY)], 4),
        ([site_failure("a", AWAY), site_failure("b", AWAY)], 5),
        ([site_failure("a", AWAY), site_failure("b", NO_CLUSTER)], 5),
        ([site_failure("a", DAMAGED), site_failure("b", DAMAGED)], 7),
    ],
)
def test_exit_codes(answers: list[SiteAnswer], code: int) -> None:
    assert exit_code_of(answers) == code
    assert sites_document(answers).exit_code == code


def test_what_is_wrong_everywhere() -> None:
    assert common_failure([site_failure("a", NO_CLUSTER), site_failure("b", NO_CLUSTER)]) == NO_CLUSTER
    assert common_failure([site_failure("a", AWAY), site_failure("b", AWAY)]) is None
    assert common_failure([site_failure("a", NO_CLUSTER), site_answer("b")]) is None


def test_the_document_has_each_under_its_site() -> None:
    document = sites_document(
        [site_answer("fra", zone="Asia/Tokyo"), site_failure("muc", AWAY), site_failure("ber", NO_CLUSTER)]
    )
    parsed = json.loads(document_text(document))
    assert (parsed["of"], parsed["sites"], list(parsed["asked"])) == (
        "top",
        {"fra": {"of": "fra"}},
        ["fra", "muc", "ber"],
    )
    assert parsed["asked"]["fra"]["at"] == "2026-07-02T05:00:00+09:00"
    assert (list(parsed["unreachable"]), list(parsed["failed"])) == (["muc"], ["ber"])


def test_documents_stand_in_it_as_they_were_written() -> None:
    text = document_text({"schema_version": 1, "hosts": [{"name": "ä"}], "use": {}})
    written = document_text({"kind": "sites", "sites": DocumentTexts(fra=text), "more": {"a": {"b": []}}})
    value = json.loads(written)
    assert value["sites"]["fra"] == json.loads(text)
    assert written == document_text({**value, "sites": DocumentTexts(fra=text)}) and written.isascii()
    assert written == json.dumps(value, indent=2) + "\n", "one layout throughout"
    assert document_text({"sites": DocumentTexts()}) == document_text({"sites": {}})


def test_tables_of_csv() -> None:
    assert (
        merged_csv({"fra": 'vm,why\n"a, b",\'=1\n', "muc": "vm,why\nc,\n"}) == 'site,vm,why\nfra,"a, b",\'=1\nmuc,c,\n'
    )
    assert merged_csv({}) == ""
