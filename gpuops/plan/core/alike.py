"""Refusals that are alike, said once: a fleet gives the same reason for each of its hosts or VMs.

Two are alike where their reasons differ in nothing but numbers, PCI addresses, their own subjects, and who holds a GPU.
Example: `has 3 free` of esx-01, `has 3 free` of esx-02 and `has 1 free` of esx-03 are one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from gpuops.plan.core.rejection import Rejection

_FEW: Final = 3
_HOLDERS: Final = re.compile(r"; held by [^:;]*")
_NUMBER: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")


def said_once(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    """One for those that are alike, with their subjects in one and the next move of the first; what is said of most
    subjects comes first, else their order is kept.

    >>> [str(each) for each in said_once(Rejection(f"esx-{n}", "has no link") for n in range(1, 6))]
    ['esx-1, esx-2, esx-3 and 2 more: has no link']
    """
    groups: dict[str, list[Rejection]] = {}
    for each in dict.fromkeys(rejections):
        groups.setdefault(_kind(each), []).append(each)
    return tuple(_one_of(alike) for alike in sorted(groups.values(), key=len, reverse=True))


def _kind(rejection: Rejection) -> str:
    """Its reason without what may differ from one subject to the next."""
    return _NUMBER.sub("N", _HOLDERS.sub("", rejection.reason.replace(rejection.subject, "")))


def _one_of(alike: Sequence[Rejection]) -> Rejection:
    first, subjects = alike[0], list(dict.fromkeys(each.subject for each in alike))
    if all(each.reason == first.reason for each in alike):
        return replace(first, subject=some_names(subjects))
    others = [each for each in subjects if each != first.subject]
    also = f"likewise {some_names(others)}" if others else f"likewise {len(alike) - 1} more"
    return Rejection(first.subject, f"{first.reason} ({also})", hint=first.hint)


def some_names(names: Sequence[str]) -> str:
    """`esx-01, esx-02, esx-03 and 97 more`."""
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")
