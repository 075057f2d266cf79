"""The line that `--quiet` prints for a run: its outcome, the VMs or hosts that failed, and the next command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuops.plan.core.plan import Rejection, Report, Verdict
from gpuops.plan.core.steps import AnyStep
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.report.hosts.change import change_summary, host_name
from gpuops.report.layout import Text
from gpuops.report.nights.rotation_deeds import deeds_line

_BAD: Final = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
_AFTER_FAILURE: Final = {
    "rotate-night": "gpuops rotate status",
    "rotate-day": "gpuops rotate day",
    "rotate-resume": "gpuops rotate day",
    "rotate-restore": "gpuops rotate day",
}
"""The command that shows or repeats what a rotation could not do."""


def run_line(report: Report[AnyStep], kind: str) -> Text:
    """Return the line for a run: `rotate day: 11 desktops resumed, 1 step failed; not done: vdi-07; next: gpuops rotate
    day`.

    `kind` is the kind of the JSON document.
    """
    refusals: list[Rejection] = [*report.plan.rejections, *report.plan.unmet]
    failed = [_name(outcome.step, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    hints = [refusal.hint for refusal in refusals if refusal.hint]
    if failed and kind in _AFTER_FAILURE:
        hints.append(_AFTER_FAILURE[kind])
    reasons, names = _reasons(report.plan.rejections), _missing(report, failed)
    return _line(kind.replace("-", " "), deeds_line(report), reasons, names, hints)


def change_line(report: ChangeReport) -> Text:
    """Return the line for a rolling change of hosts."""
    refused = report.plan.rejections
    hints = [*report.afterwards, *(refusal.hint for refusal in refused if refusal.hint)]
    failed = [host_name(outcome, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    return _line(report.verb, change_summary(report), _reasons(refused), failed, hints)


def _reasons(rejections: Iterable[Rejection]) -> list[str]:
    return [str(rejection) for rejection in rejections]


def _missing(report: Report[AnyStep], failed: list[str]) -> list[str]:
    return list(dict.fromkeys([*(rejection.subject for rejection in report.plan.unmet), *failed]))


def _name(step: object, report: Report[AnyStep]) -> str:
    ref = str(getattr(step, "vm", None) or getattr(step, "host", ""))
    entity = report.before.vms.get(ref) or report.before.hosts.get(ref)
    return entity.name if entity is not None else ref


def _line(verb: str, headline: str, reasons: list[str], names: list[str], hints: list[str]) -> Text:
    parts = [f"{verb}: {headline}", *reasons]
    if names:
        parts.append(f"not done: {', '.join(names)}")
    if hints:
        parts.append(f"next: {hints[0]}")
    return Text("; ".join(parts), "bold")
