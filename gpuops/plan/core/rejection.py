"""Refusals with their numbers, and the summary of similar ones.

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
    """A refusal with its numbers: `esx-01: memory: needs 65536 MiB, 32768 there`."""

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
    """Whether the time of day is the only reason. Cron causes such a refusal every day, so no notice is sent."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"

    @property
    def reason(self) -> str:
        """The rule with its numbers, for a text that already names the subject."""
        if self.needed is None and self.available is None:
            return self.rule
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.rule}: needs {self.needed}{unit}, {self.available} there"

    @property
    def line(self) -> str:
        return f"{self} (next: {self.hint})" if self.hint else str(self)


# Hints for refusals of something that cannot be read or reached.
READ_HOST: Final = "give this login read access to the host (System.Read)"


READ_HOST_AND_VMS: Final = "give this login read access to the host and its VMs (System.Read)"


READ_VM: Final = "give this login read access to the VM (System.Read)"


TEST_LOGIN: Final = "gpuops login test shows the privileges that this login lacks"


RECONNECT: Final = "reconnect it, or leave it out"


_HOLDERS: Final = re.compile(r"; held by [^:;]*")


_NUMBER: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")


def summarize_similar(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    """Return one rejection for each group of similar ones, with all subjects and the hint of the first.

    The rejection with the most subjects comes first; otherwise the order is kept.

    >>> [str(rejection) for rejection in summarize_similar(Rejection(f"esx-{n}", "has no link") for n in range(1, 6))]
    ['esx-1, esx-2, esx-3 and 2 more: has no link']
    """
    groups: dict[str, list[Rejection]] = {}
    for rejection in dict.fromkeys(rejections):
        # reasons that differ only in names and numbers are similar
        without_names = _HOLDERS.sub("", rejection.reason.replace(rejection.subject, ""))
        groups.setdefault(_NUMBER.sub("N", without_names), []).append(rejection)
    return tuple(_summarize_group(group) for group in sorted(groups.values(), key=len, reverse=True))


def _summarize_group(group: Sequence[Rejection]) -> Rejection:
    """Return one rejection for all: with all subjects if the reasons are equal, else with the first reason."""
    example, subjects = group[0], list(dict.fromkeys(rejection.subject for rejection in group))
    if all(rejection.reason == example.reason for rejection in group):
        return replace(example, subject=some_names(subjects))
    further_subjects = [subject for subject in subjects if subject != example.subject]
    also = f"also {some_names(further_subjects)}" if further_subjects else f"also {len(group) - 1} more"
    return Rejection(example.subject, f"{example.reason} ({also})", hint=example.hint)


def some_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others: `esx-01, esx-02, esx-03 and 97 more`."""
    further = len(names) - most
    return ", ".join(names[:most]) + (f" and {further} more" if further > 0 else "")
