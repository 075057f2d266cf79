"""Text and document of `gpuops what-if`: the fleet now and after the changes, side by side.

A figure of several draws is their mean, with the least and the most in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from gpuops.extras.sizing.what_if.demand import DemandSource, PlacedDemand
from gpuops.extras.sizing.what_if.question import DrawnFigure, FleetOutcome, NightOutcome, WhatIfAnswer
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.core.rejection import some_names
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count

_FEW: Final = 6


def what_if_text(answer: WhatIfAnswer, saved: Path | None = None) -> Shown:
    """Return the changes, a table of both fleets, notes on it, and where the placed requests are from.

    `saved`: the file that the changed fleet was written to.
    """
    inventory, then = answer.inventory, answer.then.fleet
    lines: list[Shown] = [
        Text(
            f"vCenter {inventory.api_version}, read {format_zoned_minute(inventory.taken_at)}; what if:",
            "bold",
        )
    ]
    lines += [Text(f"  {line}") for line in then.done]
    lines.append(TextTable("", "now", "then", "difference", right=(1, 2), rows=_rows(answer)))
    lines += [Text(f"note: {line}", "yellow") for line in then.notes]
    for name in answer.unwanted:
        lines.append(
            Text(
                f"note: no request asks for {name} (--any-model: one without a place may have its size there)",
                "yellow",
            )
        )
    lines += _restart_lines(answer)
    lines += _waiting(answer)
    lines += _nights(answer)
    lines += [Text(_basis_text(answer), "dim")]
    if saved is not None:
        lines.append(Text(f"the changed fleet is in {saved}: for --inventory of other commands"))
    return (*lines, Text("nothing was changed", "bold"))


def _rows(answer: WhatIfAnswer) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table: what is counted, the figure now, the figure then, and the difference."""
    now, then = answer.now, answer.then
    yield _row("hosts with GPUs", _constant_figure(now.hosts), _constant_figure(then.hosts))
    yield _row("GPUs", _constant_figure(now.gpus), _constant_figure(then.gpus))
    yield _row(
        "GPU memory, GiB", _constant_figure(now.gpu_memory_mib // 1024), _constant_figure(then.gpu_memory_mib // 1024)
    )
    yield _row("VMs with GPUs that run", now.running, then.running)
    if now.requests:
        yield _row("requests with a place", *_request_figures(answer, lambda demand: demand.placed))
        yield _row("requests that wait", *_request_figures(answer, lambda demand: len(demand.waiting)))
        yield _row("their GPU memory placed, GiB", *_request_figures(answer, lambda demand: demand.placed_mib / 1024))
        for kind in sorted({kind for demand in now.requests for kind in demand.kinds}):
            yield _kind_row(answer, kind)
    if now.nights:
        yield _row("desktops that a night suspends", *_night_figures(answer, lambda night: night.desktops))
        yield _row("ML VMs that start", *_night_figures(answer, lambda night: night.starts))
        yield _row("ML VMs that wait", *_night_figures(answer, lambda night: night.waiting))
        hours = [night.gpu_hours for night in (*now.nights, *then.nights)]
        if None not in hours:
            yield _row("GPU-hours harvested", *_night_figures(answer, lambda night: night.gpu_hours or 0.0))
        else:
            yield ("GPU-hours harvested", "?", "?", "")


def _kind_row(answer: WhatIfAnswer, kind: str) -> tuple[str, str, str, str]:
    """Return how many requests of a kind have a place, and of how many."""
    placed = _request_figures(answer, lambda demand: demand.kinds.get(kind, (0, 0))[0])
    requested = _figure_of(answer.then.requests, lambda demand: demand.kinds.get(kind, (0, 0))[1])
    return _row(f"  {kind}, of {_figure(requested)}", *placed)


def _row(label: str, now: DrawnFigure, then: DrawnFigure) -> tuple[str, str, str, str]:
    difference = then.mean - now.mean
    return label, _figure(now), _figure(then), f"{difference:+.3g}" if abs(difference) < 100 else f"{difference:+.0f}"


def _constant_figure(figure: float) -> DrawnFigure:
    return DrawnFigure((figure,))


def _request_figures(answer: WhatIfAnswer, read: Callable[[PlacedDemand], float]) -> tuple[DrawnFigure, DrawnFigure]:
    return _figure_of(answer.now.requests, read), _figure_of(answer.then.requests, read)


def _figure_of(draws: Sequence[PlacedDemand], read: Callable[[PlacedDemand], float]) -> DrawnFigure:
    return DrawnFigure(tuple(read(draw) for draw in draws))


def _night_figures(answer: WhatIfAnswer, read: Callable[[NightOutcome], float]) -> tuple[DrawnFigure, DrawnFigure]:
    now, then = (DrawnFigure(tuple(read(night) for night in side.nights)) for side in (answer.now, answer.then))
    return now, then


def _figure(figure: DrawnFigure) -> str:
    """Return `41`, or `41.2 (38 to 44)`."""
    if figure.least == figure.most:
        return _number(figure.mean)
    return f"{_number(figure.mean)} ({_number(figure.least)} to {_number(figure.most)})"


def _number(figure: float) -> str:
    return f"{figure:.0f}" if figure == round(figure) else f"{figure:.1f}"


def _restart_lines(answer: WhatIfAnswer) -> Iterator[Text]:
    """Yield the VMs that start again after the changes, and those that find no place any more."""
    fleet = answer.then.fleet
    if fleet.restarts:
        names = some_names([f"{vm.name} on {host.name}" for vm, host in fleet.restarts], _FEW)
        yield Text(f"starts again: {count(len(fleet.restarts), 'VM')}: {names}")
    for stranded in fleet.stranded[:_FEW]:
        yield Text(f"finds no place any more: {stranded.vm.name}: {stranded.reasons[0]}", "yellow")
    if len(fleet.stranded) > _FEW:  # the first ones are named above
        yield Text(f"and {len(fleet.stranded) - _FEW} more find none (--output json names them)", "yellow")
    if fleet.stranded and not fleet.proven:
        yield Text("not every placement was tried: there may be a place for each of them", "dim")
    if fleet.more_asked:
        placed = _figure(answer.then.more_placed)
        yield Text(f"VMs added: {fleet.more_asked}, of which {placed} run")


def _waiting(answer: WhatIfAnswer) -> Iterator[Text]:
    """Yield which requests of a file wait; several draws have figures only."""
    if answer.demand.source is DemandSource.FILE:
        for word, side in (("now", answer.now), ("then", answer.then)):
            names = side.requests[0].waiting
            if names:
                yield Text(f"waits {word}: {some_names(names, _FEW)}")


def _nights(answer: WhatIfAnswer) -> Iterator[Text]:
    for word, side in (("now", answer.now), ("then", answer.then)):
        for refusal in dict.fromkeys(refusal for night in side.nights for refusal in night.refusals):
            yield Text(f"no night {word}: {refusal}", "yellow")


def _basis_text(answer: WhatIfAnswer) -> str:
    demand = answer.demand
    match demand.source:
        case DemandSource.FILE:
            return "requests: those of the file, placed as gpuops place does"
        case DemandSource.RECORDED:
            days = count(len(demand.draws), "recorded day")
            return (
                f"requests: the VMs of {days} that do not run now; the mean, and in brackets the least and the most day"
            )
        case DemandSource.MADE_UP:
            seeds = count(len(demand.draws), "seed")
            requests_text = f"requests: {len(demand.draws[0])} made up like the VMs that run now, {seeds}"
            return f"{requests_text}; the mean, and in brackets the least and the most"
        case DemandSource.NONE:
            return f"requests: none, for {demand.because}"


class DrawnRecord(DocumentRecord, frozen=True):
    """A figure of several draws."""

    mean: float
    least: float
    most: float


class RequestKindRecord(DocumentRecord, frozen=True):
    """Requests that ask for the same devices."""

    kind: str
    placed: int
    asked: int


class RequestDrawRecord(DocumentRecord, frozen=True):
    """The places of the requests of one seed or recorded day."""

    asked: int
    placed: int
    placed_mib: int
    waiting: Annotated[list[str], "names of those without a place"]
    kinds: list[RequestKindRecord]

    @classmethod
    def made_of(cls, draw: PlacedDemand) -> Self:
        kinds = [RequestKindRecord(kind, placed, requested) for kind, (placed, requested) in draw.kinds.items()]
        return cls.from_attributes(draw, kinds=kinds)


class RequestsRecord(DocumentRecord, frozen=True):
    """The places of the requests."""

    placed: DrawnRecord
    waiting: DrawnRecord
    placed_mib: Annotated[DrawnRecord, "GPU memory of those with a place"]
    draws: Annotated[list[RequestDrawRecord], "one for each seed or recorded day"]

    @classmethod
    def made_of(cls, draws: Sequence[PlacedDemand]) -> Self:
        return cls.from_attributes(
            placed=_figure_of(draws, lambda draw: draw.placed),
            waiting=_figure_of(draws, lambda draw: len(draw.waiting)),
            placed_mib=_figure_of(draws, lambda draw: draw.placed_mib),
            draws=draws,
        )


class NightThereRecord(DocumentRecord, frozen=True):
    """The result of a night."""

    desktops: Annotated[int, "that are suspended or shut down"]
    starts: Annotated[int, "ML VMs that start"]
    waiting: Annotated[int, "ML VMs that do not"]
    gpu_hours: Annotated[float | None, "null = the policy has no window that ends it"]
    refusals: Annotated[list[str], "why there is no night"]


class FleetRecord(DocumentRecord, frozen=True):
    """One of the two fleets, with the places of requests and the results of nights."""

    hosts: Annotated[int, "with GPUs, that vCenter reaches"]
    gpus: int
    gpu_memory_mib: int
    running_vms: Annotated[DrawnRecord, "VMs with GPUs that run"]
    added_vms_running: Annotated[DrawnRecord, "VMs that were added and run"]
    requests: Annotated[RequestsRecord | None, "null = no requests"]
    nights: Annotated[list[NightThereRecord], "one for each drawn fleet; empty = no policy was given"]

    @classmethod
    def made_of(cls, side: FleetOutcome) -> Self:
        requests = RequestsRecord.made_of(side.requests) if side.requests else None
        return cls.from_attributes(
            side, running_vms=side.running, added_vms_running=side.more_placed, requests=requests
        )


class RestartedRecord(DocumentRecord, frozen=True):
    """A VM that starts again."""

    vm: NamedRecord
    host: NamedRecord


class WithoutPlaceRecord(DocumentRecord, frozen=True):
    """A VM without a place."""

    vm: NamedRecord
    reasons: list[str]


@printed("what-if", by="gpuops what-if")
class WhatIfDocument(VersionedSiteDocument, frozen=True):
    """The fleet as it is, and the fleet after changes that were not made."""

    changes: Annotated[list[str], "in words"]
    notes: Annotated[list[str], "what could not be checked, or was not changed"]
    models_not_asked_for: Annotated[list[str], "GPU models that are added, and that no request asks for"]
    requests_from: DemandSource
    night_at: Annotated[Moment | None, "when the night begins; null = no policy was given"]
    now: FleetRecord
    then: FleetRecord
    starts_anew: Annotated[list[RestartedRecord], "VMs that ran on a changed host or GPU, and start again"]
    without_place: Annotated[list[WithoutPlaceRecord], "VMs that ran, and find no place any more"]
    without_place_proven: Annotated[bool, "false = not every placement was tried"]
    vms_added: int

    @classmethod
    def made_of(cls, answer: WhatIfAnswer) -> Self:
        fleet = answer.then.fleet
        return cls.from_attributes(
            answer,
            answer.inventory,
            read_at=answer.inventory.taken_at,
            changes=fleet.done,
            notes=fleet.notes,
            models_not_asked_for=answer.unwanted,
            requests_from=answer.demand.source,
            starts_anew=[RestartedRecord.from_attributes(vm=vm, host=host) for vm, host in fleet.restarts],
            without_place=fleet.stranded,
            without_place_proven=fleet.proven,
            vms_added=fleet.more_asked,
        )
