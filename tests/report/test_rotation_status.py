"""The state of a rotation, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import RenderableType

from gpuops.model.rotation import Original, Role
from gpuops.plan.rotation_ours import Ours, Whereabouts
from gpuops.plan.rotation_status import RotationStatus
from gpuops.report.rotation_status import status_document, status_text

Render = Callable[[RenderableType], str]
Golden = Callable[[str, str], None]

ORIGINAL = Original("2026-11-02", Role.DESKTOP, "vm-1", "uuid-1", "desk-01", "host-1", ("nvidia_a40-8q",))
LOST = replace(ORIGINAL, vm="vm-2", name="desk-02\x1b", host=None)
STATUS = RotationStatus(
    vcenter="uuid",
    policy="office",
    cut_off="rotate night",
    cut_off_since=datetime(2026, 11, 2, 20, 0, tzinfo=UTC),
    vms=(
        Ours(ORIGINAL, None, Whereabouts.AWAY, "suspended", "gpuops rotate day"),
        Ours(LOST, None, Whereabouts.LOST, "is powered off\nby somebody"),
        Ours(replace(ORIGINAL, role=Role.ML, name="ml-01"), None, Whereabouts.BACK, "stopped"),
    ),
    names={"host-1": "esx-01"},
)


def test_text(plain: Render, golden: Golden) -> None:
    golden("rotation-status.txt", plain(status_text(STATUS)))


def test_document(golden: Golden) -> None:
    golden("rotation-status.json", json.dumps(status_document(STATUS), indent=2) + "\n")


def test_nothing_open(plain: Render) -> None:
    status = RotationStatus("uuid", None, None, None, (), {})
    assert plain(status_text(status)).startswith("no night is open")
    assert status_document(status)["away"] == 0


@pytest.mark.parametrize("policy", [None, "vdi-night"])
def test_without_a_journal_it_says_what_was_looked_at(plain: Render, policy: str | None) -> None:
    status = RotationStatus("uuid", policy, None, None, (), {})
    assert ("looked for markers alone" in plain(status_text(status))) is (policy is None)
