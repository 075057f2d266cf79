"""Lanes: how many suspends and resumes go on at once, per host, per datastore and in total.

A resource is a count per minute, and an integer whose bits are the minutes in which it is full: so the first place for
an operation is found by shifts of that integer, not minute by minute.
"""

from __future__ import annotations

from gpuops.plan.harvest.problem import Desktop, Limits


class _Resource:
    __slots__ = ("at_once", "full", "minutes")

    def __init__(self, minutes: int, at_once: int) -> None:
        self.minutes = [0] * minutes
        self.at_once = at_once
        self.full = 0


class Lanes:
    """A book of operations. Every operation keeps a lane of each of its resources from its start to its end."""

    def __init__(self, limits: Limits, minutes: int) -> None:
        self._limits, self._minutes = limits, minutes
        self._resources: dict[tuple[str, str], _Resource] = {}

    def first(self, host: str, desktop: Desktop, at: int, minutes: int) -> int | None:
        """The first start not before `at`, booked; None = there is none before the night ends."""
        resources = self._of(host, desktop)
        start_at = _next_free(_blocked(resources, minutes), at)
        if start_at + minutes > self._minutes:
            return None
        _book(resources, start_at, minutes)
        return start_at

    def last(self, host: str, desktop: Desktop, end: int, minutes: int) -> int | None:
        """The last start that ends by `end`, booked; None = there is none after the night opens."""
        resources = self._of(host, desktop)
        if end < minutes:
            return None
        free = ~_blocked(resources, minutes) & ((1 << (end - minutes + 1)) - 1)
        if not free:
            return None
        start_at = free.bit_length() - 1
        _book(resources, start_at, minutes)
        return start_at

    def cancel(self, host: str, desktop: Desktop, start: int, minutes: int) -> None:
        """Take an operation out of the book."""
        for resource in self._of(host, desktop):
            for minute in range(start, start + minutes):
                resource.minutes[minute] -= 1
                resource.full &= ~(1 << minute)

    def _of(self, host: str, desktop: Desktop) -> list[_Resource]:
        names = [(("host", host), self._limits.per_host), (("", ""), self._limits.in_total)]
        names += [(("datastore", name), self._limits.per_datastore) for name in desktop.datastores]
        found = []
        for name, at_once in names:
            if at_once is not None:
                resource = self._resources.get(name)
                if resource is None:
                    resource = self._resources[name] = _Resource(self._minutes, at_once)
                found.append(resource)
        return found


def _blocked(resources: list[_Resource], minutes: int) -> int:
    """Bits of the minutes at which an operation of this length cannot start."""
    full = 0
    for resource in resources:
        full |= resource.full
    covered = 1
    while covered < minutes:
        step = min(covered, minutes - covered)
        full |= full >> step
        covered += step
    return full


def _next_free(blocked: int, at: int) -> int:
    free = ~(blocked >> at)
    return at + (free & -free).bit_length() - 1


def _book(resources: list[_Resource], start: int, minutes: int) -> None:
    for resource in resources:
        for minute in range(start, start + minutes):
            resource.minutes[minute] += 1
            if resource.minutes[minute] >= resource.at_once:
                resource.full |= 1 << minute
