"""Findings of what a person gave up, and what is not back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuops.plan.core.given_up import Missed
from gpuops.plan.doctor.finding import Finding, Severity


def of_given_up(missed: Iterable[Missed]) -> Iterator[Finding]:
    """A warning for each: gpuops does nothing about it, a person must."""
    for each in missed:
        yield Finding(Severity.WARNING, each.given.name, each.since, each.move)
