"""`gpuops rotate overdue`: a return that nothing calls is seen from outside, without a target and without a vCenter."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.clock import machine_time, set_ahead, wall_clock
from gpuops.execute.journal import FILE_NAME, Journal
from gpuops.execute.state.state_dir import default_state_dir
from tests.cli.conftest import Lab
from tests.cli.nights.test_rotate_timers import policy_open


def overdue(*words: str) -> Result:
    return CliRunner().invoke(app, ["rotate", "overdue", *words])


def test_a_night_whose_return_no_timer_calls_is_listed_until_a_return_is_typed(lab: Lab, tmp_path: Path) -> None:
    closes = (wall_clock() + timedelta(hours=2)).replace(second=0, microsecond=0)
    policy = policy_open(tmp_path, closes - timedelta(hours=8), closes)
    assert lab.run("rotate", "night", *policy, "--yes").exit_code == 0
    set_ahead(closes - machine_time() + timedelta(minutes=29))
    in_time = overdue()
    assert (in_time.exit_code, in_time.stdout) == (0, "no vCenter is overdue: each night that is over has a return\n")
    set_ahead(closes - machine_time() + timedelta(minutes=31))
    late = overdue()
    assert late.exit_code == 4
    assert "no return is recorded ever; next: run `gpuops rotate day --yes" in " ".join(late.stdout.split())
    [vcenter] = json.loads(overdue("--output", "json").stdout)["overdue"]
    status = json.loads(lab.run("rotate", "status", "--output", "json").stdout)
    assert (status["vcenter"], status["overdue"]) == (vcenter["vcenter"], [vcenter])
    assert len(vcenter["vms"]) == status["away"] > 0
    assert lab.run("rotate", "day", *policy, "--yes").exit_code == 0
    assert overdue().exit_code == 0


def test_a_journal_that_cannot_be_read_is_no_good_news(clean: Path) -> None:
    default_state_dir().mkdir(parents=True, mode=0o700)
    (default_state_dir() / FILE_NAME).write_bytes(b"no database" * 100)
    refusal = overdue()
    assert (refusal.exit_code, refusal.stdout) == (7, "")
    assert "Traceback" not in refusal.stderr
    assert "next: " in refusal.stderr


def test_a_vcenter_whose_records_were_changed_is_named_with_the_next_step(clean: Path) -> None:
    with closing(Journal.open(default_state_dir(), "vc-1", wall_clock)) as journal:
        journal.end(journal.begin("attach"))
    with closing(sqlite3.connect(default_state_dir() / FILE_NAME)) as database, database:
        database.execute("UPDATE journal_heads SET checksum = 'another'")
    refusal = overdue()
    assert refusal.exit_code == 7
    text = " ".join(refusal.stdout.split())
    assert "whether it is returned is not known: vCenter vc-1: the journal" in text
    assert "gpuops rotate day --policy FILE" in text
