"""A run in one line, as `--quiet` and notices print it: its outcome, what failed, and the next command.

A rotation is counted in desktops and ML VMs; steps that set markers or DRS are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuops.plan.core.plan import Rejection, Report, Verdict
from gpuops.plan.core.steps import AnyStep, PowerOffVm, PowerOnVm, ResumeVm, ShutDownGuest, Step, SuspendVm
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.report.hosts.change import change_summary, host_name
from gpuops.report.layout import Text
from gpuops.report.plan_text import outcomes_counted, summary
from gpuops.report.text import count

_AT_NIGHT: Final = {
    SuspendVm: ("desktop", "suspended"),
    ShutDownGuest: ("desktop", "shut down"),
    PowerOnVm: ("ML VM", "started"),
    ResumeVm: ("desktop", "resumed"),
    PowerOffVm: ("ML VM", "powered off"),
}
_IN_THE_MORNING: Final = {
    ResumeVm: ("desktop", "resumed"),
    PowerOnVm: ("desktop", "powered on"),
    ShutDownGuest: ("ML VM", "shut down"),
    PowerOffVm: ("ML VM", "powered off"),
    SuspendVm: ("desktop", "suspended"),
}


def deeds_line(report: Report[Any]) -> str:
    """Return `4 desktops suspended, 3 ML VMs started, 1 step failed`; if a run did none of these, its closing line."""
    # a deed is a noun and a participle: ("desktop", "suspended")
    deed_counts = Counter(
        _deed_of_step(report, outcome.step) for outcome in report.outcomes if outcome.verdict is Verdict.DONE
    )
    phrases = [
        f"{count(deed_counts[deed], deed[0])} {deed[1]}" for deed in _deed_words(report).values() if deed_counts[deed]
    ]
    if not phrases:
        return summary(report)
    failures = outcomes_counted([outcome for outcome in report.outcomes if outcome.verdict not in _GOOD], "step")
    return ", ".join([*phrases, failures] if failures else phrases)


def deeds_named(report: Report[Any]) -> Iterator[str]:
    """Yield `vdi-07: suspended` for each VM that was changed."""
    for outcome in report.outcomes:
        deed = _deed_of_step(report, outcome.step)
        vm = report.before.vms.get(outcome.step.vm) if deed is not None else None
        if outcome.verdict is Verdict.DONE and deed is not None and vm is not None:
            yield f"{vm.name}: {deed[1]}"


_GOOD: Final = frozenset({Verdict.DONE, Verdict.ALREADY})


def _deed_words(report: Report[Any]) -> dict[type[Any], tuple[str, str]]:
    """Return the words for the steps of a rotation; for other runs, such as a defrag, return none."""
    if isinstance(report.request, RotateNight):
        return _AT_NIGHT
    return _IN_THE_MORNING if isinstance(report.request, RotateDay | RestoreVms) else {}


def _deed_of_step(report: Report[Any], step: object) -> tuple[str, str] | None:
    """Return the words for one step, or None."""
    if isinstance(step, SuspendVm) and step.gives_way:
        return "ML VM", "suspended"
    return _deed_words(report).get(type(step)) if isinstance(step, Step) else None


_BAD: Final = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
_AFTER_FAILURE: Final = {
    "rotate-night": "gpuops rotate status",
    "rotate-day": "gpuops rotate day",
    "rotate-resume": "gpuops rotate day",
    "rotate-restore": "gpuops rotate day",
}
"""The command that shows or repeats what a rotation could not do."""


def run_line(report: Report[AnyStep], kind: str) -> Text:
    """Return the line for a run: `rotate day: 11 desktops resumed, 1 step failed; not done: vdi-07; next: COMMAND`.

    `kind` is the kind of the JSON document, such as `rotate-day`.
    """
    refusals: list[Rejection] = [*report.plan.rejections, *report.plan.unmet]
    failed = [_name(outcome.step, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    hints = [refusal.hint for refusal in refusals if refusal.hint]
    if failed and kind in _AFTER_FAILURE:
        hints.append(_AFTER_FAILURE[kind])
    unmet = [rejection.subject for rejection in report.plan.unmet]
    names = list(dict.fromkeys([*unmet, *failed]))
    return _line(kind.replace("-", " "), deeds_line(report), report.plan.rejections, names, hints)


def change_line(report: ChangeReport) -> Text:
    """Return the line for a rolling change of hosts."""
    refused = report.plan.rejections
    hints = [*report.afterwards, *(refusal.hint for refusal in refused if refusal.hint)]
    failed = [host_name(outcome, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    return _line(report.verb, change_summary(report), refused, failed, hints)


def _name(step: object, report: Report[AnyStep]) -> str:
    ref = str(getattr(step, "vm", None) or getattr(step, "host", ""))
    entity = report.before.vms.get(ref) or report.before.hosts.get(ref)
    return entity.name if entity is not None else ref


def _line(verb: str, headline: str, rejections: Iterable[Rejection], names: list[str], hints: list[str]) -> Text:
    parts = [f"{verb}: {headline}", *map(str, rejections)]
    if names:
        parts.append(f"not done: {', '.join(names)}")
    if hints:
        parts.append(f"next: {hints[0]}")
    return Text("; ".join(parts), "bold")
