"""The audit log: one line each, private, and what cannot be written there is not done."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.state.state_dir import append


def test_lines_are_added(tmp_path: Path) -> None:
    for number in range(2):
        append(tmp_path / "state", "2026-11-02T18:00:00+00:00", "certificate-not-verified", number=number, who="a\nb")
    path = tmp_path / "state" / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["number"] for line in lines] == [0, 1]
    assert lines[0]["event"] == "certificate-not-verified"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.touch()
    (state / "audit.jsonl").symlink_to(victim)
    with pytest.raises(StateDamaged, match=r"audit\.jsonl is a symbolic link"):
        append(state, "now", "event")
    assert victim.read_bytes() == b""
