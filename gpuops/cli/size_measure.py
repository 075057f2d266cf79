"""`gpuops size --measure`: the options that only it has, and how it is carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpuops.cli import output
from gpuops.cli.options import CommonOptions, MeasureOptions
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.model.sharing_measurement import MeasureWish
    from gpuops.plan.capacity.measure import MeasurePlan


def refuse_without_measure(options: MeasureOptions) -> None:
    """Raises UsageError where an option of --measure is given without it."""
    given = [
        name
        for name, value in (
            ("--template", options.template),
            ("--counts", options.counts),
            ("--run", options.run),
            ("--schedulers", options.schedulers),
            ("--on", options.on),
            ("--remove", options.remove or None),
            ("--dry-run", options.dry_run or None),
            ("--yes", options.yes or None),
        )
        if value is not None
    ]
    if given:
        raise UsageError(f"{given[0]} is of --measure", hint="without --measure nothing is made or changed")


def size_measure(common: CommonOptions, options: MeasureOptions, profile: str | None, overlap: str | None) -> None:
    """Measure, or remove what is left of a measurement, and print what came of it."""
    if options.remove:
        _remove(common, options)
        return
    from gpuops.api.measuring import measure
    from gpuops.cli.opening import open_site
    from gpuops.cli.running import confirm
    from gpuops.report.measured import measure_plan_text, measured_document, measured_text

    wish = _wish(options, profile, overlap)

    def consent(plan: MeasurePlan) -> None:
        if not options.yes:
            confirm(measure_plan_text(plan), "the measurement above makes VMs, runs a command in them and removes them")

    with open_site(common) as site:
        site.say = output.note
        found = measure(wish, site, apply=not options.dry_run, consent=consent)
    shown = measured_text(found.plan, found.measurement, found.left) if found.applied else measure_plan_text(found.plan)
    output.show(shown, measured_document(found.plan, found.measurement, found.left, applied=found.applied))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _remove(common: CommonOptions, options: MeasureOptions) -> None:
    from gpuops.api.measuring import remove_measurement
    from gpuops.cli.opening import open_site
    from gpuops.cli.running import confirm
    from gpuops.report.measured import left_document, left_text

    with open_site(common) as site:
        found = remove_measurement(site, apply=False)
        if found.measurement is not None and not options.dry_run:
            if found.vms and not options.yes:
                confirm(left_text(found.measurement, found.vms, (), applied=False), "the VMs above are removed")
            found = remove_measurement(site, apply=True)
    text = left_text(found.measurement, found.vms, found.left, applied=found.applied)
    output.show(text, left_document(found.measurement, found.vms, found.left, applied=found.applied))
    if found.left:
        raise typer.Exit(4)


def _wish(options: MeasureOptions, profile: str | None, overlap: str | None) -> MeasureWish:
    """Raises UsageError for what is missing, or means nothing."""
    from gpuops.config.workloads_file import share_of
    from gpuops.model.scheduler import SchedulerPolicy
    from gpuops.model.sharing_measurement import MeasureWish

    if options.template is None or profile is None or options.counts is None or options.run is None:
        needed = (("--template", options.template), ("--profile", profile), ("--counts", options.counts))
        missing = next((name for name, value in needed if value is None), "--run")
        raise UsageError(
            f"--measure needs {missing}",
            hint="gpuops size --measure --template golden --profile a40-8q --counts 1,2,4 --run 'python3 train.py'",
        )
    words = [each.strip() for each in options.counts.split(",")]
    wrong = next((each for each in words if not each.isdecimal() or len(each) > 3), None)
    if wrong is not None:
        raise UsageError(f"--counts {options.counts}: {wrong!r} is no number of VMs", hint="write --counts 1,2,4,8")
    named = [each.strip() for each in (options.schedulers or "").split(",") if each.strip()]
    unknown = next((each for each in named if each not in list(SchedulerPolicy)), None)
    if unknown is not None:
        raise UsageError(f"there is no scheduler {unknown!r}", hint=f"one of {', '.join(SchedulerPolicy)}")
    return MeasureWish(
        options.template,
        profile,
        options.run,
        tuple(sorted({1, *map(int, words)})),
        tuple(dict.fromkeys(map(SchedulerPolicy, named))),
        share_of(overlap, "--overlap") if overlap is not None else 1.0,
        options.on,
        options.limit,
    )
