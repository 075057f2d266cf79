"""The state of a rotation, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuops.model.nights.night_record import LockHolder, Original, Role
from gpuops.plan.rotation.lease_rules import Lease
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts
from gpuops.report.document import as_values
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import Shown
from gpuops.report.nights.rotation_status_view import status_document, status_text

Render = Callable[[Shown], str]
Golden = Callable[[str, str], None]

ORIGINAL = Original("2026-11-02", Role.DESKTOP, "vm-1", "uuid-1", "desk-01", "host-1", ("nvidia_a40-8q",))
LOST = replace(ORIGINAL, vm="vm-2", name="desk-02\x1b", host=None)
STATUS = RotationStatus(
    vcenter="uuid",
    policy="office",
    cut_off="rotate night",
    cut_off_since=datetime(2026, 11, 2, 20, 0, tzinfo=UTC),
    remembered=True,
    marker="gpuops.rotation",
    under_way=None,
    doing=None,
    vms=(
        TakenVm(ORIGINAL, None, Whereabouts.AWAY, "suspended", "gpuops rotate day"),
        TakenVm(LOST, None, Whereabouts.LOST, "is powered off\nby somebody"),
        TakenVm(replace(ORIGINAL, role=Role.ML, name="ml-01"), None, Whereabouts.BACK, "stopped"),
        TakenVm(replace(ORIGINAL, role=Role.ML, name="ml-02"), None, Whereabouts.CHANGING, "is being started"),
    ),
    names={"host-1": "esx-01"},
)
OVERDUE = replace(STATUS, overdue=(Overdue("gone", ("desk-09\x1b",), datetime(2026, 11, 2, 6, 0, tzinfo=UTC), None),))


def test_text(plain: Render, golden: Golden) -> None:
    golden("rotation-status.txt", plain(status_text(OVERDUE)))


def test_document(golden: Golden) -> None:
    golden("rotation-status.json", document_text(status_document(OVERDUE)))


def test_what_no_policy_covers_is_counted(plain: Render) -> None:
    foreign = TakenVm(ORIGINAL, None, Whereabouts.FOREIGN, "not touched")
    assert "policy office: 0 VMs away, 2 foreign" in plain(status_text(replace(STATUS, vms=(foreign, foreign))))


def test_nothing_open(plain: Render) -> None:
    status = replace(STATUS, policy=None, cut_off=None, cut_off_since=None, vms=())
    assert plain(status_text(status)).startswith("no night is open")
    assert as_values(status_document(status))["away"] == 0


def test_without_a_journal_it_says_what_was_looked_at(plain: Render) -> None:
    blank = replace(STATUS, policy=None, cut_off=None, cut_off_since=None, vms=())
    assert "looked for" not in plain(status_text(blank))
    text = plain(status_text(replace(blank, remembered=False)))
    assert "only the marker gpuops.rotation was read; --policy FILE reads the marker of a policy" in text
    named = replace(blank, remembered=False, policy="office", marker="office.night", lock_vm="lock")
    assert plain(status_text(named)).endswith("only the marker office.night was read\n")


def test_the_lease_is_told_or_that_there_is_none(plain: Render) -> None:
    lease = Lease("pid 7 on jump-2", "5f0c", 3, datetime(2026, 11, 2, 20, 8, tzinfo=UTC))
    leased = replace(STATUS, lock_vm="lock", lease=lease)
    sentence = "pid 7 on jump-2 holds the lease until 2026-11-02 20:08:00 UTC by vCenter's clock (id 5f0c)"
    assert sentence in " ".join(plain(status_text(leased)).split())
    assert as_values(status_document(leased))["lease"] == {
        "owner": "pid 7 on jump-2",
        "id": "5f0c",
        "epoch": 3,
        "expires": "2026-11-02T20:08:00+00:00",
    }
    assert "a run on another machine is not seen" in plain(status_text(STATUS))
    assert "a run on another machine is not seen" not in plain(status_text(leased))
    trouble = replace(STATUS, lock_vm="lock", lock_trouble="lock_vm: no VMs are called lock")
    assert "warning: lock_vm: no VMs are called lock" in plain(status_text(trouble))
    assert as_values(status_document(trouble))["lock_trouble"] == "lock_vm: no VMs are called lock"


def test_a_damaged_journal_is_said_before_what_the_markers_say(plain: Render) -> None:
    damaged = replace(STATUS, remembered=False, cut_off=None, journal_lost="record 7 is missing")
    first, move, *_ = plain(status_text(damaged)).splitlines()
    assert first == "record 7 is missing: this is what vCenter's markers say"
    assert move == "next: gpuops rotate day --policy FILE brings back the VMs that they name"
    assert (damaged.exit_code, STATUS.exit_code) == (7, 0)
    assert (status_document(damaged).journal_lost, status_document(STATUS).journal_lost) == (
        "record 7 is missing", None,
    )  # fmt: skip


def test_of_a_run_that_was_cut_off_one_command_is_the_next_move(plain: Render) -> None:
    cut_off, ended = (tuple(status_text(replace(STATUS, cut_off=kind, overdue=()))) for kind in (STATUS.cut_off, None))
    assert "gpuops rotate resume" in plain(cut_off) and "gpuops rotate day" not in plain(cut_off)
    assert "gpuops rotate resume" not in plain(ended) and "gpuops rotate day" in plain(ended)


HOLDER = LockHolder(4711, datetime(2026, 11, 2, 20, 5, 9, tzinfo=UTC))


@pytest.mark.parametrize(
    ("holder", "doing", "expected"),
    [
        (HOLDER, "rotate night", "rotate night is under way: pid 4711 since 2026-11-02 20:05:09 UTC"),
        (LockHolder(None, None), None, "a rotation is under way: another run"),
    ],
)
def test_a_run_under_way_is_not_cut_off(plain: Render, holder: LockHolder, doing: str | None, expected: str) -> None:
    status = replace(STATUS, cut_off=None, cut_off_since=None, under_way=holder, doing=doing)
    text = plain(status_text(status))
    assert text.startswith(expected)
    assert "did not end" not in text
    assert "gpuops rotate day" not in text, "it would be refused now"
    assert "1 VM away, 1 changing, 1 lost" in text
    document = as_values(status_document(status))
    assert (document["cut_off"], document["under_way"]["kind"], document["under_way"]["pid"]) == (
        None,
        doing,
        holder.pid,
    )
