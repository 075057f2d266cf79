"""How commands carry out a plan: they open a site, ask, show progress, print the report, and end with its code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gpuops.clock import pause, wall_clock
from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions, RunOptions
from gpuops.errors import GpuopsError, PolicyError, Refused, UsageError
from gpuops.model.time_text import format_clock_second
from gpuops.plan.core.plan import Report

if TYPE_CHECKING:
    from gpuops.console.drawn_progress import DrawnProgress
    from gpuops.execute.site.vcenter_wait import VcenterWait
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.plan.core.plan import Outcome, Report
    from gpuops.plan.core.steps import Step
    from gpuops.report.document import AnyDocument
    from gpuops.report.layout import Shown


class ConsentPrompt:
    """Asks for consent before a disruptive plan is carried out; raises as `confirm`."""

    def __init__(self, *, yes: bool) -> None:
        self.yes = yes

    def __call__(self, report: Report) -> None:
        if not report.plan.disruptive or self.yes:
            return
        from gpuops.report.plan_text import plan_text

        confirm(plan_text(report.plan, report.before))


def confirm(question: Shown, reason: str = "the plan above stops, moves or reboots something") -> None:
    """Return if the admin answers yes to the question. Raises UsageError without a terminal, Refused for a no."""
    output.note(question)
    if not sys.stdin.isatty():
        raise UsageError(
            f"{reason}, and there is no terminal to ask at",
            hint="check the plan with --dry-run, then add --yes",
        )
    # not typer.confirm: it writes a blank to stdout, where only the result belongs
    sys.stderr.write("Go ahead? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("not confirmed: nothing was changed")  # no next step: the admin has just decided it


class Progress:
    """Shows the progress of one run; the end of its `with` block removes what is drawn.

    `begin` is called with the plan before the first step, `in_flight` with the steps that were sent, and the object
    itself with the outcome of each step.
    """

    def __init__(self, continue_with: str = "the same command again") -> None:
        """`continue_with`: what to type to continue the run after an interruption."""
        self._continue_with = continue_with
        self.report: Report | None = None
        """The current run; None = none was started."""
        self.ended = 0
        self.printed_steps: set[str] = set()
        """The steps that --verbose printed as they ended, by `step_key`."""
        self._drawn: DrawnProgress | None = None

    @property
    def steps(self) -> int:
        return len(self.report.plan.steps) if self.report else 0

    def begin(self, report: Report) -> None:
        self.report, self.ended = report, 0
        if output.may_draw(sys.stderr) and self._drawn is None and not output.manners().quiet:
            from gpuops.console.drawn_progress import DrawnProgress

            self._drawn = DrawnProgress()
        if self._drawn is not None:
            self._drawn.begin(report)

    def in_flight(self, steps: Sequence[Step]) -> None:
        """Show the steps that were sent and have not ended."""
        if self._drawn is not None:
            self._drawn.sent(steps)

    def __call__(self, outcome: Outcome) -> None:
        """Count the outcome, show it in the drawn progress, and print its line with --verbose."""
        self.ended += 1
        if self.report is None:
            return
        if self._drawn is not None:
            self._drawn.ended(outcome)
        if output.manners().verbose:
            from gpuops.report.layout import Text
            from gpuops.report.plan_text import outcome_line, step_key

            self.printed_steps.add(step_key(outcome.step))
            line = outcome_line(outcome, self.report.before)
            clock_and_count = f"{format_clock_second(wall_clock().astimezone())} [{self.ended}/{self.steps}] "
            output.note(Text(clock_and_count, "dim").append(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None
        if self.report is not None:
            output.note_if_cut_off(kind, f"interrupted after {self.ended} of {self.steps} steps", self._continue_with)


def waits_for_answer(run_options: RunOptions) -> bool:
    """Return whether a run asks for consent and waits for an answer."""
    return sys.stdin.isatty() and not (run_options.yes or run_options.dry_run)


_CONTINUE_WITH: Final = {"rotate": "gpuops rotate resume", "defrag": "gpuops change resume"}
"""The command that continues such a run after an interruption, by its first word."""


def carry_out(
    api_function: Callable[..., Report],
    kind: str,
    common: CommonOptions,
    run_options: RunOptions,
    *,
    host_shell: HostShellOptions | None = None,
    inventory_file: Path | None = None,
    require_verified: bool = False,
    vcenter_wait: VcenterWait | None = None,
    may_return: bool = False,
) -> None:
    """Run the function, print its report, and end the command with the exit code of the report.

    `api_function` is called with the site, `apply` and `consent`. `kind` names the JSON document. `require_verified` as
    for `open_site`: the run is one of those that send notices. `vcenter_wait`: how a return waits for a vCenter that
    does not answer. `may_return`: only the journal shows whether this run is a return.
    """
    from gpuops.console.opening import open_site, remember

    prompt = ConsentPrompt(yes=run_options.yes)

    def consent(report: Report) -> None:
        # called again after each reading while vCenter did not answer; a return without questions shows one plan
        asks_once = is_return and not waits_for_answer(run_options)
        is_new_plan = progress.report is None or report.plan.waves != progress.report.plan.waves
        if progress.report is None or (is_new_plan and not asks_once):
            prompt(report)
        progress.begin(report)

    waits = vcenter_wait if not run_options.dry_run else None
    # "defrag-execute" -> "defrag", "rotate-night" -> "rotate night"
    run = kind.removesuffix("-execute").replace("-", " ") if require_verified and not run_options.dry_run else ""
    is_return = vcenter_wait is not None or (None if may_return else False)
    with (
        open_site(
            common,
            inventory_file=inventory_file,
            require_verified=require_verified,
            vcenter_wait=waits,
            run=run,
            is_return=is_return,
        ) as site,
        Progress(_CONTINUE_WITH.get(run.partition(" ")[0], "the same command again")) as progress,
    ):
        site.progress, site.in_flight = progress, progress.in_flight
        if waits is None:  # with a wait, `connect` has set `say` to the function that prints the wait
            site.say = output.note
        if host_shell is not None:
            host_shell.give_to(site, inventory_file)
        report = api_function(site, apply=not run_options.dry_run and inventory_file is None, consent=consent)
    if inventory_file is None:
        remember(common, report.before)
    # on a terminal the lines of --verbose are above the result already; a file with only the result gets all lines
    printed_steps = progress.printed_steps if output.errors_beside_result() else set()
    _show_report(report, kind, explain=run_options.explain, inventory_file=inventory_file, printed_steps=printed_steps)
    output.leave(report.exit_code)


def policy_of_run(path: Path, command: str, common: CommonOptions, *, looks_only: bool) -> Policy:
    """Return the policy in this file. Raises PolicyError, in an unattended run after a notice to the receivers."""
    from gpuops.config.policy import load_policy

    try:
        return load_policy(path)
    except PolicyError as error:
        if not (looks_only or sys.stdin.isatty()):
            _notify_receivers(error, command, common)
        raise


def _notify_receivers(error: PolicyError, command: str, common: CommonOptions) -> None:
    from gpuops.console.opening import notice_way_of
    from gpuops.extensions import load

    with suppress(GpuopsError):  # without readable receivers only the error itself is printed
        load("gpuops.extras.notify.run_watch.send_failure")(notice_way_of(common), command, error)


def vcenter_wait_for(policy: Policy | PolicyError | None) -> VcenterWait:
    """Return how a return waits for vCenter, with notes: until an hour after its desktops are due.

    Without a policy that can be read the wait has its own limit.
    """
    from gpuops.execute.site.vcenter_wait import VcenterWait
    from gpuops.execute.state.service_manager import GOES_ON, tell_systemd
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.report.layout import Text

    def pause_and_tell_systemd(seconds: float) -> None:
        tell_systemd(GOES_ON)
        pause(seconds)

    readable_policy = policy if isinstance(policy, Policy) else None
    return VcenterWait(
        readable_policy, wall_clock, pause_and_tell_systemd, lambda line: output.note(Text(line, "yellow"))
    )


def _show_report(
    report: Report, kind: str, *, explain: bool, inventory_file: Path | None, printed_steps: Collection[str]
) -> None:
    from gpuops.report.layout import Text
    from gpuops.report.plan_json import report_document
    from gpuops.report.plan_text import report_text
    from gpuops.report.run_progress import run_line

    if output.manners().quiet:
        # a timer calls often when there is nothing to do: no line then
        idle = kind.startswith(("rotate", "defrag")) and not (report.outcomes or report.exit_code or report.plan.steps)
        show_brief(() if idle else run_line(report, kind), report.plan.warnings, report_document(report, kind))
        return
    text = report_text(report, explain=explain, printed_steps=printed_steps)
    if inventory_file is not None:
        text = (text, Text(f"planned on the saved inventory {inventory_file}: nothing is changed", "dim"))
    output.show(text, report_document(report, kind))


def show_brief(line: Shown, warnings: Iterable[str], document: AnyDocument) -> None:
    """Print the result of a run with --quiet: warnings on stderr, and its summary line or, as JSON, its document."""
    from gpuops.report.layout import Text

    for warning in warnings:
        output.note(Text(f"warning: {warning}", "yellow"))
    output.show(line, document)
