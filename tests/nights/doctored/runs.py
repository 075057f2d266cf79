"""Nights that are doctored in what runs did by their journals, reports, locks and leases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpuops.errors import GpuopsError
from gpuops.execute.journal.record import IntentState, Kind
from gpuops.plan.core.plan import Rejection, Verdict
from gpuops.plan.rotation.lease import KEY
from tests.nights.at_once.machines import Beside
from tests.nights.doctored.nights import Doctor, after, first, with_ledger
from tests.nights.judging.doings import SHUT_DOWN, SUSPEND
from tests.nights.playing.place import Admission
from tests.nights.playing.played import Played
from tests.nights.world.worlds import CLOSES, LOCK


def asked_at(moment: Any) -> Doctor:
    return lambda night: replace(night, asked=dict.fromkeys(night.asked, moment))


def without_records(kind: Kind) -> Doctor:
    return lambda night: replace(
        night, kept=[kept_record for kept_record in night.kept if kept_record[0].kind is not kind]
    )


def closed_at_once(night: Played) -> Played:
    """The journal lets go of a desktop as soon as it is suspended."""
    suspend = first(night, SUSPEND, desktop=True)
    return replace(
        night,
        kept=[
            (record, suspend.sequence if record.kind is Kind.RETURNED and record.body["vm"] == suspend.moid else length)
            for record, length in night.kept
        ],
    )


def called_failed(night: Played) -> Played:
    """Every intent is settled as failed before anything happened."""
    return replace(
        night,
        kept=[
            (replace(record, body={**record.body, "state": "failed"}), 0)
            if record.kind is Kind.SETTLED
            else (record, length)
            for record, length in night.kept
        ],
    )


def told_before(night: Played) -> Played:
    """The reports were made before anything was done."""
    return replace(night, told=[(report, 0) for report, _ in night.told])


def morning_told_too_early(night: Played) -> Played:
    suspend = first(night, SUSPEND, desktop=True)
    reports = [(replace(report, outcomes=()), suspend.sequence) for report, _ in night.told]
    return replace(night, told=reports)


def two_evenings(night: Played) -> Played:
    """A second evening run that did what the first had not."""
    middle = first(night, SUSPEND, desktop=True).at - timedelta(seconds=1)
    whole = next(report_kept for report_kept in night.told if report_kept[0].exit_code == 0)
    return replace(
        night, calls=[("rotate night", "done", middle), ("rotate night", "done", CLOSES)], told=[whole, whole]
    )


def advised_in_vain(night: Played) -> Played:
    """Two returns that name the same desktop, and advise the same return again."""
    assert night.last is not None
    refusal = Rejection("desktop-001", "is away", hint="gpuops rotate day")
    report = replace(night.last, plan=replace(night.last.plan, unmet=(refusal,)))
    return replace(night, told=[(report, 7), (report, 7)])


def not_wholly_done(night: Played) -> Played:
    """An evening whose first step was left out."""
    report, length = night.told[0]
    left_out = replace(report.outcomes[0], verdict=Verdict.SKIPPED, reason="the window has closed")
    return replace(night, told=[(replace(report, outcomes=(left_out, *report.outcomes[1:])), length), *night.told[1:]])


def failed_and_gone_on(night: Played) -> Played:
    """All that settled before the last suspend was asked for had failed."""
    records = [
        (replace(record, body={**record.body, "state": "failed"}) if record.kind is Kind.SETTLED else record, length)
        for record, length in night.kept
    ]
    return replace(night, kept=records)


def ended_by_itself(night: Played) -> Played:
    """A night in which nothing goes wrong, and that ends without a report."""
    (name, _, at), *other_calls = night.calls
    return replace(night, calls=[(name, "NotConnected: vCenter did not answer", at), *other_calls], told=night.told[1:])


def acts_under_a_lease_that_was_reverted(night: Played) -> Played:
    suspend = first(night, SUSPEND, desktop=True)
    lease = {"extra_config": {KEY: "a lease"}}
    reverted = replace(
        suspend, moid="lock", name=LOCK, operation_id="", method="RevertToSnapshot_Task", before=lease,
        after={"extra_config": {}},
    )  # fmt: skip
    later = {op_id: (run, half, length + 1) for op_id, (run, half, length) in night.sent_by.items()}
    return with_ledger(night, [reverted, *night.world.ledger], sent_by=later, names={**night.names, "lock": LOCK})


def without_a_lease(night: Played) -> Played:
    """There is a lock VM without a lease."""
    policy = replace(night.site.policy, lock_vm=LOCK)
    return replace(night, site=replace(night.site, policy=policy))


def counted_and_never_asked(night: Played) -> Played:
    """A night settles a step as failed that it never asked for."""
    settled = next(kept_record for kept_record in night.kept if kept_record[0].kind is Kind.SETTLED)
    record, length = settled
    failed = replace(record, body={**record.body, "state": IntentState.FAILED, "counts": True})
    records = [(failed, length) if kept_record is settled else kept_record for kept_record in night.kept]
    return replace(
        night, kept=records, asks=[kept_record for kept_record in night.asks if kept_record[0] != record.body["op"]]
    )


def shut_down_beside_its_journal(night: Played) -> Played:
    """A desktop was shut down, by us, and no journal knows it."""
    return after(SUSPEND, desktop=True, moid="vm-0", name="desktop-099", method=SHUT_DOWN)(night)


def beside(error: GpuopsError | None, lock: Admission, sent: int = 0) -> Doctor:
    """A run was begun while another was under way, and ended so."""
    return lambda night: replace(night, beside=[Beside(error, lock, sent)])
