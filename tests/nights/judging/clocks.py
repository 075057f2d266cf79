"""Clocks: nothing is taken while vCenter's clock and this machine's are far apart."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.plan.rotation.nights.night_refusals import MOST_CLOCK_DIFFERENCE
from tests.nights.judging.doings import takings
from tests.nights.playing.played import Played


def nothing_on_a_wrong_clock(night: Played) -> Iterator[str]:
    """I21: where the clocks are apart from the first login on, no desktop is suspended and no ML VM is started; and
    soon nothing more where somebody sets one while a night goes on."""
    for point, at in night.on_a_wrong_clock:
        yield f"I21: {point.removeprefix('before ')} at {at:%H:%M}, and the clocks had been apart for minutes"
    skews = [rule for event in night.events if event.fault == "K7" for rule in event.rules]
    if any(rule.at_s is not None for rule in skews):
        return
    # the last one to strike counts
    always = all(abs(rule.delay_s) > MOST_CLOCK_DIFFERENCE.total_seconds() for rule in skews)
    apart = always and any(rule.skip == 0 for rule in skews)
    for entry in takings(night) if apart else ():
        yield f"I21: {entry.method} on {entry.name}, and the time was unknown"
