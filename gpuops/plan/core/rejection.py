"""A "no" with its numbers, and how similar refusals of many hosts or VMs become one. Nothing here loads a plan.

Two rejections are alike if their reasons differ only in numbers, PCI addresses, their own subjects, and who holds a
GPU. Example: `has 3 free` of esx-01, `has 3 free` of esx-02 and `has 1 free` of esx-03 are one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final


class Shortage(Enum):
    """The resource of a host or node that is too small for a VM, if the rejection has its numbers."""

    VCPUS = auto()
    MEMORY = auto()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A "no" with its numbers: `numa0: memory beside the GPU: needs 65536 MiB, 32768 free`."""

    subject: str
    """What is refused: a VM, a host, a GPU (`esx-01 0000:3b:00.0`), a NUMA node."""
    rule: str
    needed: float | str | None = None
    available: float | str | None = None
    unit: str = ""
    hint: str = ""
    short_of: Shortage | None = None
    """The resource that a smaller VM would need less of; None = the size of the VM is not the reason."""
    by_the_hour: bool = False
    """The time of day is the only reason: cron meets it every day, so it needs no notice."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"

    @property
    def reason(self) -> str:
        """Return the rule with its numbers, for a text that already names the subject."""
        if self.needed is None and self.available is None:
            return self.rule
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.rule}: needs {self.needed}{unit}, {self.available} there"

    @property
    def line(self) -> str:
        """Return subject, reason and next move in one line."""
        return f"{self} (next: {self.hint})" if self.hint else str(self)


_FEW: Final = 3
_HOLDERS: Final = re.compile(r"; held by [^:;]*")
_NUMBER: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")


def said_once(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    """Return one rejection for all that are alike, with their subjects and the next move of the first.

    The rejection with the most subjects comes first; otherwise the order is kept.

    >>> [str(rejection) for rejection in said_once(Rejection(f"esx-{n}", "has no link") for n in range(1, 6))]
    ['esx-1, esx-2, esx-3 and 2 more: has no link']
    """
    groups: dict[str, list[Rejection]] = {}
    for rejection in dict.fromkeys(rejections):
        groups.setdefault(_kind(rejection), []).append(rejection)
    return tuple(_one_of(alike) for alike in sorted(groups.values(), key=len, reverse=True))


def _kind(rejection: Rejection) -> str:
    """Return the reason without the parts that may differ from one subject to the next."""
    return _NUMBER.sub("N", _HOLDERS.sub("", rejection.reason.replace(rejection.subject, "")))


def _one_of(alike: Sequence[Rejection]) -> Rejection:
    first, subjects = alike[0], list(dict.fromkeys(rejection.subject for rejection in alike))
    if all(rejection.reason == first.reason for rejection in alike):
        return replace(first, subject=some_names(subjects))
    further_subjects = [subject for subject in subjects if subject != first.subject]
    also = f"also {some_names(further_subjects)}" if further_subjects else f"also {len(alike) - 1} more"
    return Rejection(first.subject, f"{first.reason} ({also})", hint=first.hint)


def some_names(names: Sequence[str], most: int = _FEW) -> str:
    """Return `esx-01, esx-02, esx-03 and 97 more`: a fleet has hundreds of hosts and VMs."""
    further = len(names) - most
    return ", ".join(names[:most]) + (f" and {further} more" if further > 0 else "")
