"""`gpuops history` as typed: table, document and CSV of a night of the scenario `lab`, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import Result

from gpuops.execute.journal import Journal
from gpuops.execute.runs import NightVms
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.model.nights.night_record import Original, Role
from tests.cli.conftest import Lab

Gpuops = Callable[..., Result]
AT = datetime(2026, 11, 20, 20, tzinfo=UTC)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.long
def test_a_night_and_its_changes_in_every_format(after_a_night: Lab) -> None:
    lab = after_a_night
    assert lab.run("attach", "--vm", "ml-07", "--profile", "a100-3-20c").exit_code == 0
    document = json.loads(lab.run("history", "--output", "json").stdout)
    [night] = document["nights"]
    [change] = document["changes"]
    suspended = sum(effect.startswith("SuspendVM_Task") for effect in lab.effects)
    assert (document["schema_version"], document["kind"]) == (1, "history")
    assert (night["outcome"], night["desktops_taken"], night["desktops_back"]) == ("done", suspended, suspended)
    assert (night["policy"], night["ml_vms"], night["incident_count"]) == ("lab-night", 3, 0)
    assert 0 < night["share"] <= 1
    assert night["gpu_hours"] == document["totals"]["gpu_hours"]
    assert (change["what"], change["of"], change["outcome"]) == ("attach", ["ml-07"], "done")

    listed = rows(lab.run("history", "-o", "csv").stdout)
    assert [(row["kind"], row["outcome"], row["by"]) for row in listed] == [
        ("night", "done", night["by"][0]), ("change", "done", f"{change['user']}@{change['machine']}"),
    ]  # fmt: skip
    assert float(listed[0]["gpu_hours"]) == night["gpu_hours"]
    assert listed[1]["gpu_hours"] == ""

    text = lab.run("history").stdout
    assert f"\n{night['night']}  done " in text
    assert f"1 night: {suspended} desktops taken, {suspended} back; " in text
    assert ("%" in text) is (f"{night['gpu_hours_available']:.1f}" != "0.0"), "there is no part of what reads 0.0"


@pytest.mark.long
def test_one_night_in_full(after_a_night: Lab) -> None:
    lab = after_a_night
    [night] = json.loads(lab.run("history", "-o", "json").stdout)["nights"]
    [night_shown] = json.loads(lab.run("history", "show", night["night"], "-o", "json").stdout)["nights"]
    assert {key: night_shown[key] for key in night} == night
    assert [run["command"] for run in night_shown["runs"]] == ["rotate night", "rotate day"]
    periods = {vm["name"]: vm["held"] for vm in night_shown["vms"]}
    assert all(period["from"] < period["until"] for held_periods in periods.values() for period in held_periods)
    assert sorted(periods) == sorted(vm["name"] for vm in night_shown["vms"] if vm["back"])
    text = lab.run("history", "show", night["night"]).stdout
    assert all(name in text for name in periods)
    assert "nothing went wrong" in text
    assert {row["vm"] for row in rows(lab.run("history", "show", night["night"], "-o", "csv").stdout)} == set(periods)


def test_a_night_that_is_open_is_said_with_the_next_move(lab_by_night: Lab) -> None:
    [night] = json.loads(lab_by_night.run("history", "-o", "json").stdout)["nights"]
    assert (night["outcome"], night["gpu_hours"], night["share"]) == ("open", None, None)
    text = lab_by_night.run("history", "show", night["night"]).stdout
    assert text.splitlines()[-1] == "next: gpuops rotate status shows what is not back"


def write(*names: str, days_ago: int = 0) -> None:
    """A night in the journal of this home, which saved desktops of these names and took none."""
    at = AT - timedelta(days=days_ago)
    with closing(Journal.open(default_state_dir(), "vc-1", lambda: at)) as journal:
        run = journal.begin("rotate night", night=f"{at:%Y-%m-%d}")
        NightVms(journal).save(
            [Original(f"{at:%Y-%m-%d}", Role.DESKTOP, f"vm-{number}", None, name, None)
             for number, name in enumerate(names)], run,
        )  # fmt: skip
        journal.end(run)


def test_no_journal_is_no_error_and_nothing_is_made(gpuops: Gpuops) -> None:
    history_run = gpuops("history")
    assert history_run.exit_code == 0
    assert history_run.stdout.startswith("no nights yet")
    assert "\nnext: gpuops rotate plan" in history_run.stdout
    assert rows(gpuops("history", "-o", "csv").stdout) == []
    assert json.loads(gpuops("history", "-o", "json").stdout)["totals"]["share"] is None
    assert not default_state_dir().exists()


def test_an_unknown_night_is_one_line_and_the_command_that_lists_them(gpuops: Gpuops) -> None:
    write("vdi-1")
    refusal = gpuops("history", "show", "2026-01-01")
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    first, following = refusal.stderr.splitlines()
    assert first.startswith("error: no night '2026-01-01' in the journal ")
    assert following == "next: gpuops history lists the nights"


@pytest.mark.long
def test_what_began_since_then_and_no_more_than_the_limit(gpuops: Gpuops) -> None:
    for days in range(3):
        write("vdi-1", days_ago=days)
    ids = [row["id"] for row in rows(gpuops("history", "-o", "csv").stdout)]
    assert ids == ["2026-11-20", "2026-11-19", "2026-11-18"], "newest first"
    since = [row["id"] for row in rows(gpuops("history", "--since", "2026-11-19", "-o", "csv").stdout)]
    assert since == ids[:2]
    history_run = gpuops("history", "--limit", "1")
    assert history_run.stdout.splitlines()[-1] == "2 older ones are not shown: use a higher --limit"
    assert rows(gpuops("history", "--kind", "change", "-o", "csv").stdout) == []
    assert gpuops("history", "--kind", "change").stdout.startswith("nothing of kind change in the journal\nnext: ")


@pytest.mark.parametrize("since", ["3x", "", "yesterday", "2026-13-01", "0001-01-01", "99999d"])
def test_a_time_that_is_none_is_refused(gpuops: Gpuops, since: str) -> None:
    refusal = gpuops("history", "--since", since)
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert "30d (days), 12w (weeks) or 2026-11-01" in refusal.stderr


@pytest.mark.parametrize("words", [("-o", "csv", "inventory"), ("inventory", "--output", "csv")])
def test_csv_is_refused_by_other_commands_before_they_do_anything(gpuops: Gpuops, words: tuple[str, ...]) -> None:
    refusal = gpuops(*words, "--vcenter", "https://127.0.0.1:1")
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert refusal.stderr == (
        "error: only gpuops history has --output csv\nnext: use --output json, which every command has\n"
    )


@pytest.mark.long
@pytest.mark.parametrize("user", ["ann", "gpuops-ci", "svc-gpuops-nightly-rotation"])
def test_it_fits_a_terminal_of_80_columns(after_a_night: Lab, user: str) -> None:
    from dataclasses import replace

    from gpuops.api import history
    from gpuops.report.layout import lines
    from gpuops.report.nights.history_view import history_text

    nights = history(default_state_dir())
    (night,) = nights.nights
    runs = tuple(replace(run, by=replace(run.by, user=user, machine="jump-01.example.org")) for run in night.runs)
    nights = replace(nights, nights=(replace(night, runs=runs),))
    rendered = ["".join(text for text, _ in line).rstrip() for line in lines(history_text(nights, ""), 80)]
    assert max(map(len, rendered)) <= 80
    assert nights.nights[0].id in rendered[1], "the name of a night is in one piece"
