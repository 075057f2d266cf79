"""Log: what happened in one gated night, line by line: users, the broker's calls, and what gpuops did."""

from __future__ import annotations

from collections.abc import Iterator

from tests.nights.gated.night import GatedPlayed
from tests.nights.playing.played import lines as lines_of_night


def lines(gated: GatedPlayed) -> Iterator[str]:
    """The schedule, the ledger of both servers, every session, and every step with its end."""
    yield from (str(trouble) for trouble in gated.troubles)
    yield from lines_of_night(gated.night)
    names = gated.night.names
    for stay in gated.pod.stays:
        way = "RDP" if stay.by_rdp else "the broker"
        until = f"{stay.until:%H:%M:%S}" if stay.until is not None else "the end"
        yield f"{stay.since:%H:%M:%S} a user of {names.get(stay.moid, stay.moid)} by {way}, until {until}"
    for report, _ in gated.night.told:
        for outcome in report.outcomes:
            vm = report.before.vms.get(outcome.step.vm)
            name = vm.name if vm is not None else outcome.step.vm
            yield f"{report.before.taken_at:%H:%M:%S} {outcome.step.kind} {name}: {outcome.verdict} {outcome.reason}"
