"""`gpuops rotate status` as typed: once, watching, and where the journal is damaged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import repeat
from pathlib import Path

import pytest

from gpuops.api import rotate_night
from gpuops.cli.rotate_state import changed_states
from gpuops.config.policy import load_policy
from gpuops.errors import VcenterUnreachable
from gpuops.execute.journal import FILE_NAME
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.plan.rotation.lease_rules import Lease
from gpuops.plan.rotation.night_status import RotationStatus
from tests.cli.conftest import Lab
from tests.wire.roles.test_least_privilege import site_of

POLICY = ("--policy", str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml"))
AT = datetime(2026, 11, 2, 20, 0, tzinfo=UTC)
CALM = RotationStatus("uuid", None, None, None, False, "gpuops.rotation", None, None, (), {})
HELD = replace(CALM, lock_vm="lock", lease=Lease("pid 1 on jump", "5f0c", 1, AT))
RENEWED = replace(HELD, lease=Lease("pid 1 on jump", "5f0c", 1, AT + timedelta(minutes=1)))


class Ended(Exception):
    """The looks are used up."""


def statuses_shown(*looks: RotationStatus | VcenterUnreachable) -> list[RotationStatus]:
    remaining: Iterator[RotationStatus | VcenterUnreachable] = iter(looks)

    def look() -> RotationStatus:
        look_or_error = next(remaining, None)
        if look_or_error is None:
            raise Ended
        if isinstance(look_or_error, VcenterUnreachable):
            raise look_or_error
        return look_or_error

    statuses = []
    with pytest.raises(Ended):
        for status in changed_states(look, repeat(None)):
            statuses.append(status)
    return statuses


def test_what_did_not_change_is_not_shown_again() -> None:
    assert statuses_shown(CALM, CALM, HELD, RENEWED, HELD, CALM) == [CALM, HELD, CALM]


def test_it_goes_on_while_vcenter_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    down = VcenterUnreachable("vc: connection refused")
    assert statuses_shown(CALM, down, down, CALM, HELD) == [CALM, HELD]
    assert capsys.readouterr().err == "warning: vc: connection refused\n"
    with pytest.raises(VcenterUnreachable):
        statuses_shown(down)


@pytest.mark.long
def test_a_night_is_watched_and_ctrl_c_ends_it_quietly(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            with site_of(lab.server, tmp_path / "other") as other_site:
                assert rotate_night(load_policy(Path(POLICY[1])), other_site, apply=True).exit_code == 0
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    watched = lab.run("rotate", "status", "--follow", "--output", "json", *POLICY)
    assert watched.exit_code == 0
    decoder, text, counts = json.JSONDecoder(), watched.stdout.strip(), []
    while text:
        document, end = decoder.raw_decode(text)
        counts.append(document["away"])
        text = text[end:].strip()
    assert counts == [0, 7]
    assert "interrupted" not in watched.stderr


@pytest.mark.long
def test_a_damaged_journal_is_said_and_the_markers_are_shown(lab_by_night: Lab) -> None:
    lab = lab_by_night
    journal = default_state_dir() / FILE_NAME
    journal.write_bytes(b"not a database, but long enough to have a header" * 100)
    status = lab.run("rotate", "status", *POLICY)
    assert status.exit_code == 7
    assert "file is not a database: this is what vCenter's markers say" in status.stdout
    assert "policy lab-night: 7 VMs away" in status.stdout
    document = json.loads(lab.run("rotate", "status", *POLICY, "--output", "json").stdout)
    assert (document["away"], "not a database" in document["journal_lost"]) == (7, True)
