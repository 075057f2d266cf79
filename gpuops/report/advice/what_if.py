"""What `gpuops what-if` prints: the fleet now and then side by side, and the same as a JSON document.

A figure of several draws is their mean, with the least and the most in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.what_if.demand import DemandSource, PlacedDemand
from gpuops.plan.what_if.question import DrawnFigure, FleetOutcome, NightOutcome, WhatIfAnswer
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count

_FEW: Final = 6


def what_if_text(found: WhatIfAnswer, saved: Path | None = None) -> Shown:
    """The changes, one table, and what it stands on."""
    inventory, then = found.inventory, found.then.fleet
    lines: list[Shown] = [
        Text(
            f"vCenter {inventory.api_version}, read {format_zoned_minute(inventory.taken_at)}; what if:",
            "bold",
        )
    ]
    lines += [Text(f"  {each}") for each in then.done]
    lines.append(TextTable("", "now", "then", "difference", right=(1, 2), rows=_rows(found)))
    lines += [Text(f"note: {each}", "yellow") for each in then.notes]
    for name in found.unwanted:
        lines.append(
            Text(
                f"note: no request asks for {name} (--any-model: one without a place may have its size there)",
                "yellow",
            )
        )
    lines += _anew(found)
    lines += _waiting(found)
    lines += _nights(found)
    lines += [Text(_source(found), "dim")]
    if saved is not None:
        lines.append(Text(f"the changed fleet is in {saved}: for --inventory of other commands"))
    return (*lines, Text("nothing was changed", "bold"))


def _rows(found: WhatIfAnswer) -> Iterator[tuple[str, str, str, str]]:
    now, then = found.now, found.then
    yield _row("hosts with GPUs", _one(now.hosts), _one(then.hosts))
    yield _row("GPUs", _one(now.gpus), _one(then.gpus))
    yield _row("GPU memory, GiB", _one(now.gpu_memory_mib // 1024), _one(then.gpu_memory_mib // 1024))
    yield _row("VMs with GPUs that run", now.running, then.running)
    if now.requests:
        yield _row("requests with a place", *_of_requests(found, lambda each: each.placed))
        yield _row("requests that wait", *_of_requests(found, lambda each: len(each.waiting)))
        yield _row("their GPU memory placed, GiB", *_of_requests(found, lambda each: each.placed_mib / 1024))
        for kind in sorted({kind for each in now.requests for kind in each.kinds}):
            yield _row_of_kind(found, kind)
    if now.nights:
        yield _row("desktops that a night suspends", *_of_nights(found, lambda each: each.desktops))
        yield _row("ML VMs that start", *_of_nights(found, lambda each: each.starts))
        yield _row("ML VMs that wait", *_of_nights(found, lambda each: each.waiting))
        hours = [each.gpu_hours for each in (*now.nights, *then.nights)]
        if None not in hours:
            yield _row("GPU-hours harvested", *_of_nights(found, lambda each: each.gpu_hours or 0.0))
        else:
            yield ("GPU-hours harvested", "?", "?", "")


def _row_of_kind(found: WhatIfAnswer, kind: str) -> tuple[str, str, str, str]:
    """How many requests of a kind have a place, of how many."""
    placed = _of_requests(found, lambda each: each.kinds.get(kind, (0, 0))[0])
    asked = _figure_of(found.then.requests, lambda each: each.kinds.get(kind, (0, 0))[1])
    return _row(f"  {kind}, of {_figure(asked)}", *placed)


def _row(what: str, now: DrawnFigure, then: DrawnFigure) -> tuple[str, str, str, str]:
    difference = then.mean - now.mean
    return what, _figure(now), _figure(then), f"{difference:+.3g}" if abs(difference) < 100 else f"{difference:+.0f}"


def _one(value: float) -> DrawnFigure:
    return DrawnFigure((value,))


def _of_requests(found: WhatIfAnswer, read: Callable[[PlacedDemand], float]) -> tuple[DrawnFigure, DrawnFigure]:
    return _figure_of(found.now.requests, read), _figure_of(found.then.requests, read)


def _figure_of(draws: Sequence[PlacedDemand], read: Callable[[PlacedDemand], float]) -> DrawnFigure:
    return DrawnFigure(tuple(read(each) for each in draws))


def _of_nights(found: WhatIfAnswer, read: Callable[[NightOutcome], float]) -> tuple[DrawnFigure, DrawnFigure]:
    now, then = (DrawnFigure(tuple(read(each) for each in side.nights)) for side in (found.now, found.then))
    return now, then


def _figure(figure: DrawnFigure) -> str:
    """`41`, or `41.2 (38 to 44)`."""
    if figure.least == figure.most:
        return _number(figure.mean)
    return f"{_number(figure.mean)} ({_number(figure.least)} to {_number(figure.most)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _anew(found: WhatIfAnswer) -> Iterator[Text]:
    """Who starts anew, and who finds no place any more."""
    fleet = found.then.fleet
    if fleet.restarts:
        names = _some([f"{vm.name} on {host.name}" for vm, host in fleet.restarts])
        yield Text(f"starts anew: {count(len(fleet.restarts), 'VM')}: {names}")
    for each in fleet.stranded[:_FEW]:
        yield Text(f"finds no place any more: {each.vm.name}: {each.reasons[0]}", "yellow")
    if len(fleet.stranded) > _FEW:
        yield Text(f"and {len(fleet.stranded) - _FEW} more find none (--output json names them)", "yellow")
    if fleet.stranded and not fleet.proven:
        yield Text("not every way was tried: there may be a place for each of them", "dim")
    if fleet.more_asked:
        placed = _figure(found.then.more_placed)
        yield Text(f"of {count(fleet.more_asked, 'VM')} that are added run: {placed}")


def _waiting(found: WhatIfAnswer) -> Iterator[Text]:
    """Which requests of a file wait; of several draws there are only figures."""
    if found.demand.source is DemandSource.FILE:
        for word, side in (("now", found.now), ("then", found.then)):
            names = side.requests[0].waiting
            if names:
                yield Text(f"waits {word}: {_some(names)}")


def _nights(found: WhatIfAnswer) -> Iterator[Text]:
    for word, side in (("now", found.now), ("then", found.then)):
        for refusal in dict.fromkeys(each for night in side.nights for each in night.refusals):
            yield Text(f"no night {word}: {refusal}", "yellow")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _source(found: WhatIfAnswer) -> str:
    demand = found.demand
    match demand.source:
        case DemandSource.FILE:
            return "requests: those of the file, placed as gpuops place does"
        case DemandSource.RECORDED:
            days = count(len(demand.draws), "recorded day")
            return f"requests: what ran beyond now on {days}; the mean, and in brackets the least and the most day"
        case DemandSource.MADE_UP:
            made = f"requests: {len(demand.draws[0])} made up as what runs now, {count(len(demand.draws), 'seed')}"
            return f"{made}; the mean, and in brackets the least and the most"
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
    """What becomes of the requests of one seed or recorded day."""

    asked: int
    placed: int
    placed_mib: int
    waiting: Annotated[list[str], "names of those without a place"]
    kinds: list[RequestKindRecord]

    @classmethod
    def made_of(cls, draw: PlacedDemand) -> Self:
        kinds = [RequestKindRecord(kind, done, of) for kind, (done, of) in draw.kinds.items()]
        return cls.from_attributes(draw, kinds=kinds)


class RequestsRecord(DocumentRecord, frozen=True):
    """What becomes of the requests."""

    placed: DrawnRecord
    waiting: DrawnRecord
    placed_mib: Annotated[DrawnRecord, "GPU memory of those with a place"]
    draws: Annotated[list[RequestDrawRecord], "one of each seed or recorded day"]

    @classmethod
    def made_of(cls, draws: Sequence[PlacedDemand]) -> Self:
        return cls.from_attributes(
            placed=_figure_of(draws, lambda each: each.placed),
            waiting=_figure_of(draws, lambda each: len(each.waiting)),
            placed_mib=_figure_of(draws, lambda each: each.placed_mib),
            draws=draws,
        )


class NightThereRecord(DocumentRecord, frozen=True):
    """What a night would be."""

    desktops: Annotated[int, "that are suspended or shut down"]
    starts: Annotated[int, "ML VMs that start"]
    waiting: Annotated[int, "ML VMs that do not"]
    gpu_hours: Annotated[float | None, "null = the policy has no window that ends it"]
    refusals: Annotated[list[str], "why there is no night"]


class FleetRecord(DocumentRecord, frozen=True):
    """One of the two fleets, and what becomes of requests and nights there."""

    hosts: Annotated[int, "with GPUs, that vCenter reaches"]
    gpus: int
    gpu_memory_mib: int
    running_vms: Annotated[DrawnRecord, "VMs with GPUs that run"]
    added_vms_running: Annotated[DrawnRecord, "VMs that were added and run"]
    requests: Annotated[RequestsRecord | None, "null = there are none"]
    nights: Annotated[list[NightThereRecord], "one of each seed that tells fleets apart; empty = no policy was given"]

    @classmethod
    def made_of(cls, side: FleetOutcome) -> Self:
        requests = RequestsRecord.made_of(side.requests) if side.requests else None
        return cls.from_attributes(
            side, running_vms=side.running, added_vms_running=side.more_placed, requests=requests
        )


class RestartedRecord(DocumentRecord, frozen=True):
    """A VM that starts anew."""

    vm: NamedRecord
    host: NamedRecord


class WithoutPlaceRecord(DocumentRecord, frozen=True):
    """A VM without a place."""

    vm: NamedRecord
    reasons: list[str]


@printed("what-if", by="gpuops what-if")
class WhatIfDocument(VersionedSiteDocument, frozen=True):
    """The fleet as it is beside the fleet after changes that nobody has made."""

    changes: Annotated[list[str], "in words"]
    notes: Annotated[list[str], "what could not be checked, or was left as it is"]
    models_not_asked_for: Annotated[list[str], "GPU models that are added, and that no request asks for"]
    requests_from: DemandSource
    night_at: Annotated[Moment | None, "when the night begins; null = no policy was given"]
    now: FleetRecord
    then: FleetRecord
    starts_anew: Annotated[list[RestartedRecord], "who ran on what changed, and runs again"]
    without_place: Annotated[list[WithoutPlaceRecord], "who ran, and finds no place any more"]
    without_place_proven: Annotated[bool, "false = not every way was tried"]
    vms_added: int

    @classmethod
    def made_of(cls, found: WhatIfAnswer) -> Self:
        fleet = found.then.fleet
        return cls.from_attributes(
            found,
            found.inventory,
            read_at=found.inventory.taken_at,
            changes=fleet.done,
            notes=fleet.notes,
            models_not_asked_for=found.unwanted,
            requests_from=found.demand.source,
            starts_anew=[RestartedRecord.from_attributes(vm=vm, host=host) for vm, host in fleet.restarts],
            without_place=fleet.stranded,
            without_place_proven=fleet.proven,
            vms_added=fleet.more_asked,
        )
