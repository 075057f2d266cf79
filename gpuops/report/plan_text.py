"""Plans and their outcomes as text for people. The words may change at any time; the JSON document is the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpuops.model.time_text import format_duration
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import AnyStep, ReconfigureVm, Step
from gpuops.plan.devices.settings import KEY as BASELINE_KEY
from gpuops.report.layout import Shown, Text, cut_off, padded
from gpuops.report.step_changes import Change, changes, title, waves_with_snapshots
from gpuops.report.text import count

_LONGEST_VALUE: Final = 100
STYLES: Final = {
    Verdict.DONE: "green",
    Verdict.ALREADY: "green",
    Verdict.FAILED: "bold red",
    Verdict.UNKNOWN: "bold red",
    Verdict.SKIPPED: "yellow",
}
_VERDICT_WORDS: Final = {
    Verdict.DONE: "done",
    Verdict.ALREADY: "already so",
    Verdict.FAILED: "failed",
    Verdict.UNKNOWN: "with unknown outcome",
    Verdict.SKIPPED: "not tried",
}


def report_text(report: Report, *, explain: bool = False, printed_steps: Collection[str] = ()) -> Shown:
    """Return the text of a run: the choices, the changes, what was left out, and one closing line.

    For `printed_steps` (by `step_key`), which were printed when they ended, only the changes are listed.
    """
    return (
        *plan_lines(report, explain=explain, printed_steps=printed_steps),
        *note_lines(report.plan),
        Text(summary(report), "bold"),
    )


def plan_text(plan: Plan, inventory: Inventory) -> Shown:
    """Return a plan before it is applied, as it is shown for confirmation."""
    return (*plan_lines(Report(None, inventory, plan)), *note_lines(plan))


def plan_lines(report: Report, *, explain: bool = False, printed_steps: Collection[str] = ()) -> Iterator[Text]:
    """Yield refusals, or each step with its changes and, after it was applied, its outcome.

    `printed_steps` are the keys of steps whose outcomes were printed during the run. They are left out, except that
    reconfigurations still show their changes.
    """
    plan = report.plan
    if explain:
        yield from _choice_lines(plan)
    yield from rejection_lines("refused", plan.rejections, "bold red")
    if len(plan.waves) > 1 and not report.outcomes:
        yield Text("; ".join(f"{wave.title}: {len(wave.steps)}" for wave in plan.waves), "bold")
    ended = {step_key(outcome.step): outcome for outcome in report.outcomes}
    planned = {step_key(step) for step in plan.steps}
    # outcomes of an earlier, interrupted run: the plan has no steps for them
    earlier = [outcome for outcome in report.outcomes if step_key(outcome.step) not in planned]
    if earlier:
        yield Text("steps of the interrupted run", "bold")
        yield from (Text("  ").append(outcome_line(outcome, report.before)) for outcome in earlier)
    # each wave with the snapshot that the waves before it leave
    for number, (wave, world) in enumerate(waves_with_snapshots(plan, report.before), 1):
        listed_steps = [
            step for step in wave.steps if step_key(step) not in printed_steps or isinstance(step, ReconfigureVm)
        ]
        if len(plan.waves) > 1 and listed_steps:
            yield Text(f"{number}. {wave.title}", "bold")
        for step in listed_steps:
            outcome = None if step_key(step) in printed_steps else ended.get(step_key(step))
            yield from _step_lines(step, outcome, world)
    yield from rejection_lines("left out", plan.unmet, "yellow")


def summary(report: Report[AnyStep]) -> str:
    """Return the closing line: what was or would be changed, or why nothing is."""
    plan = report.plan
    if not plan.feasible:
        return f"nothing changed: refused for {count(len(plan.rejections), 'reason')}"
    if not plan.steps and plan.unmet:
        return f"nothing done: {len(plan.unmet)} left out"
    if not plan.steps:
        return "nothing to do" + (f": {'; '.join(plan.because)}" if plan.because else "")
    if not report.applied:
        return f"{count(len(plan.steps), 'step')} planned, nothing changed"
    return outcomes_counted(report.outcomes, "step")


def outcome_line(outcome: Outcome, inventory: Inventory) -> Text:
    """Return one step with its outcome: `done     suspend desk-001  3.1 s`."""
    line = Text(f"{outcome.verdict:<8} ", STYLES[outcome.verdict])
    line.append(title(outcome.step, inventory))
    if outcome.duration_s is not None:
        line.append(f"  {format_duration(outcome.duration_s)}", "dim")
    if outcome.reason:
        line.append(f"  {outcome.reason}")
    return line


def outcomes_counted(outcomes: Iterable[Outcome[AnyStep]], noun: str) -> str:
    """Return the number of steps for each outcome: `3 steps done, 1 failed`."""
    numbers = Counter(outcome.verdict for outcome in outcomes)
    counts = [(numbers[verdict], name) for verdict, name in _VERDICT_WORDS.items() if numbers[verdict]]
    # only the first count has the noun
    return ", ".join(
        f"{number if index else count(number, noun)} {name}" for index, (number, name) in enumerate(counts)
    )


def _step_lines(step: Step, outcome: Outcome | None, before: Inventory) -> Iterator[Text]:
    line = outcome_line(outcome, before) if outcome else Text(title(step, before))
    yield Text("  ").append(line)
    if isinstance(step, ReconfigureVm):
        yield from change_table(tuple(_shorten_baseline(change) for change in changes(step, before)))


def _shorten_baseline(change: Change) -> Change:
    """Return the change with a short note in place of the settings that detach will restore, which the JSON document
    lists."""
    if change.what != BASELINE_KEY:
        return change
    before, after = (settings and "kept for detach" for settings in (change.before, change.after))
    return Change("settings from before", before, after)


def change_table(details: Iterable[Change], *, longest: int = _LONGEST_VALUE) -> Iterator[Text]:
    """Yield a line for each change: label, before, after. Longer texts are cut; the JSON document has all of them."""
    details = tuple(details)
    for label, change in zip(padded(change.what for change in details), details, strict=True):
        line = Text(f"      {label}  ").append(_value(change.before, longest), "dim")
        yield line.append(" -> ").append(_value(change.after, longest), "green")


def _value(text: str | None, longest: int) -> str:
    return "none" if text is None else cut_off(text, longest)


def _choice_lines(plan: Plan) -> Iterator[Text]:
    for choice in sorted(plan.choices, key=lambda choice: not choice.chosen):  # the chosen ones first
        style = "green" if choice.chosen else "dim"
        yield Text(f"{'chosen  ' if choice.chosen else 'not     '} {choice.subject}: {choice.reason}", style)


def rejection_lines(word: str, rejections: Iterable[Rejection], style: str) -> Iterator[Text]:
    """Yield a line for each rejection, and below it the next move."""
    for rejection in rejections:
        yield Text(f"{word}: ", style).append(str(rejection))
        if rejection.hint:
            yield Text(f"         next: {rejection.hint}", "dim")


def note_lines(plan: Plan[AnyStep]) -> Iterator[Text]:
    """Yield the warnings and notes of a plan."""
    yield from (Text(f"warning: {text}", "yellow") for text in plan.warnings)
    if plan.steps:
        yield from (Text(f"note: {text}", "dim") for text in plan.because)


def step_key(step: Step) -> str:
    """Return a text that identifies the step. Steps contain mappings and are therefore not hashable."""
    return repr(step)
