"""`gpuops measure`: how much VMs that share a GPU slow each other down, tried with VMs of a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.console import output
from gpuops.console.options import CommonOptions, MeasureOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError, report_exit_code

if TYPE_CHECKING:
    from gpuops.extras.sizing.measured_schedulers import SchedulersMeasured
    from gpuops.extras.sizing.measuring import MeasurementLeft, SharingMeasured
    from gpuops.model.measurements.sharing_measurement import MeasureWish, SharingMeasurement
    from gpuops.model.vcenter.host_settings import Rolling


@spread
def measure(common: CommonOptions, options: MeasureOptions) -> None:
    """Measure how much VMs that share a GPU slow each other down: make VMs of a template, run a command, remove them.

    One VM first, then as many at once as --counts says, under each scheduler. `gpuops size` says what to expect.

    \b
    Examples:
      gpuops measure --template golden --profile a40-8q --counts 1,2,4 --guest-command 'python3 train.py' --dry-run
      gpuops measure --remove --yes
    """
    if options.remove:
        _remove(common, options)
        return
    from gpuops.console.opening import open_site
    from gpuops.console.running import confirm
    from gpuops.extras.sizing.measured_view import measure_plan_text, measured_document, measured_text
    from gpuops.extras.sizing.measuring import measure as carry_out

    wish = _wish(options)
    if wish.sets_schedulers:
        _each_scheduler(common, options, wish)
        return

    def consent(planned: SharingMeasured) -> None:
        if not options.yes:
            confirm(
                measure_plan_text(planned.plan),
                "the measurement above makes VMs, runs a command in them and removes them",
            )

    with open_site(common) as site:
        site.say = output.note
        measured = carry_out(wish, site, apply=not options.dry_run, consent=consent)
    text = (
        measured_text(measured.plan, measured.measurement, measured.left)
        if measured.applied
        else measure_plan_text(measured.plan)
    )
    output.show(text, measured_document(measured.plan, measured.measurement, measured.left, applied=measured.applied))
    output.leave(measured.exit_code)


def _each_scheduler(common: CommonOptions, options: MeasureOptions, wish: MeasureWish) -> None:
    """Measure under several schedulers, which are set in between, and print the outcome."""
    from gpuops.console.drawn_progress import ChangeProgress
    from gpuops.console.opening import open_site
    from gpuops.console.running import confirm
    from gpuops.extras.sizing.measured_schedulers import SettingSchedulers, measure_schedulers
    from gpuops.extras.sizing.measured_view import measure_plan_text, measured_document, measured_text
    from gpuops.report.hosts.change_view import change_text

    def consent(planned: SchedulersMeasured) -> None:
        if not options.yes:
            texts = [measure_plan_text(planned.measured.plan), *map(change_text, planned.changes)]
            confirm(texts, "the measurement above makes VMs and removes them, and reboots their host")

    with open_site(common, require_verified=True) as site, ChangeProgress() as progress:
        site.say = output.note
        setting = SettingSchedulers(_rolling(options), progress)
        outcome = measure_schedulers(wish, site, setting, apply=not options.dry_run, consent=consent)
    measured = outcome.measured
    if measured.applied:
        text = measured_text(measured.plan, measured.measurement, measured.left)
    else:
        text = measure_plan_text(measured.plan)
    document = measured_document(
        measured.plan, measured.measurement, measured.left, applied=measured.applied, changes=outcome.changes
    )
    output.show([text, *map(change_text, outcome.changes)], document)
    output.leave(outcome.exit_code)


def _rolling(options: MeasureOptions) -> Rolling:
    from gpuops.config.date_text import parse_window
    from gpuops.model.vcenter.host_settings import Displacement, Rolling

    window = parse_window(options.window) if options.window is not None else None
    return Rolling(window=window, vms=options.running_vms or Displacement.MOVE)


def _remove(common: CommonOptions, options: MeasureOptions) -> None:
    """Remove the VMs of an unfinished measurement after consent, and print the outcome."""
    from gpuops.console.opening import open_site
    from gpuops.console.running import confirm
    from gpuops.extras.sizing.measured_view import SizeMeasureRemoveDocument, removal_text
    from gpuops.extras.sizing.measuring import remove_measurement

    def parts_of(
        measurement_left: MeasurementLeft,
    ) -> tuple[SharingMeasurement | None, tuple[str, ...], tuple[str, ...], str]:
        """Return the positional arguments of `removal_text`."""
        return measurement_left.measurement, measurement_left.vms, measurement_left.left, measurement_left.undone

    def consent(planned: MeasurementLeft) -> None:
        if planned.vms and not options.yes:
            confirm(removal_text(*parts_of(planned), applied=False), "the VMs above are removed")

    with open_site(common) as site:
        outcome = remove_measurement(site, apply=not options.dry_run, consent=consent)
    document = SizeMeasureRemoveDocument.from_attributes(
        outcome, id=outcome.measurement and outcome.measurement.id, undone=outcome.undone or None
    )
    output.show(removal_text(*parts_of(outcome), applied=outcome.applied), document)
    # partly: VMs remain, or they were removed but the scheduler is still another one
    output.leave(report_exit_code(partly=outcome.left or (outcome.undone and outcome.applied)))


def _wish(options: MeasureOptions) -> MeasureWish:
    """Return the measurement of the options. Raises UsageError for missing and invalid ones."""
    from gpuops.config.requests_file import share_of
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.measurements.sharing_measurement import MeasureWish

    needed = {
        "--template": options.template,
        "--profile": options.profile,
        "--counts": options.counts,
        "--guest-command": options.guest_command,
    }
    template, profile, counts, command = needed.values()
    if template is None or profile is None or counts is None or command is None:
        missing = next(name for name, setting in needed.items() if setting is None)
        raise UsageError(
            f"measure needs {missing}",
            hint="gpuops measure --template golden --profile a40-8q --counts 1,2,4 --guest-command 'python3 train.py'",
        )
    words = [word.strip() for word in counts.split(",")]
    # more digits than a possible count has: `int` would refuse a very long number with another error
    wrong = next((word for word in words if not word.isdecimal() or len(word) > 3), None)
    if wrong is not None:
        raise UsageError(f"--counts {counts}: {wrong!r} is not a number of VMs", hint="write --counts 1,2,4,8")
    named = [word.strip() for word in (options.schedulers or "").split(",") if word.strip()]
    unknown = next((word for word in named if word not in list(SchedulerPolicy)), None)
    if unknown is not None:
        raise UsageError(f"there is no scheduler {unknown!r}", hint=f"choose from {', '.join(SchedulerPolicy)}")
    if options.set_schedulers and not named:
        raise UsageError("--set-schedulers needs --schedulers", hint="add --schedulers best-effort,equal-share")
    if (options.window or options.running_vms) and not options.set_schedulers:
        option = "--window" if options.window else "--running-vms"
        raise UsageError(
            f"{option} needs --set-schedulers",
            hint=f"without --set-schedulers no host is rebooted: leave {option} out",
        )
    return MeasureWish(
        template,
        profile,
        command,
        tuple(sorted({1, *map(int, words)})),  # one VM alone is what the other counts are compared with
        tuple(dict.fromkeys(map(SchedulerPolicy, named))),
        share_of(options.overlap, "--overlap") if options.overlap is not None else 1.0,
        options.host,
        options.timeout,
        options.whole,
        options.set_schedulers,
    )
