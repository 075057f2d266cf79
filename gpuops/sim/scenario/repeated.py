"""How many hosts or VMs one entry of a scenario stands for, and how each of them is called.

A scenario may come from a stranger, so its names are no format strings of Python: those can ask for any width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpuops.sim.scenario.declared import Count, Share

if TYPE_CHECKING:
    from gpuops.sim.scenario.scenario_file import ScenarioFile

LONGEST_NAME: Final = 255
"""Characters of a name as it is declared; a host's DNS name has no more."""
NAMES_AND_COUNTS: Final = "a name may hold {} or {:03}; a count is a number, or a parameter of this scenario"
_NUMBER: Final = re.compile(r"\{(?::0?([1-9]))?\}")


def expand_name(pattern: str, number: int) -> str:
    """Return the name with this number.

    >>> expand_name("esx-{:03}.lab", 7)
    'esx-007.lab'
    """
    return _NUMBER.sub(lambda field: str(number).zfill(int(field[1] or 0)), pattern)


def numbers(counts: list[Count], parameters: Mapping[str, int]) -> list[int]:
    """What the counts of one list come to; shares of one parameter are rounded so that they add up."""
    numbers_used: list[int] = []
    so_far: dict[str, float] = {}
    for count in counts:
        match count:
            case Share(percent=percent, of=of):
                low = so_far.get(of, 0.0)
                so_far[of] = low + percent
                total = parameters[of]
                numbers_used.append(round(total * so_far[of] / 100) - round(total * low / 100))
            case str():
                numbers_used.append(parameters[count])
            case _:
                numbers_used.append(count)
    return numbers_used


def wrong_repetitions(scenario: ScenarioFile) -> Iterator[str]:
    """The names that cannot be expanded and the counts by unknown parameters, with their places in the file."""
    entries: list[tuple[str, str, Count]] = []
    for number, cluster in enumerate(scenario.clusters):
        entries.append((f"clusters.{number}", cluster.name, 1))
        entries += _entries(f"clusters.{number}.hosts", [(hosts.name, hosts.count) for hosts in cluster.hosts])
    entries += _entries("vms", [(vms.name, vms.count) for vms in scenario.vms])
    for place, name, count in entries:
        if len(name) > LONGEST_NAME:
            yield f"{place}.name: has more than {LONGEST_NAME} characters"
        if set(_NUMBER.sub("", name)) & set("{}"):
            yield f"{place}.name: {name[:80]!r} has braces, and not as in {{}} or {{:03}}"
        parameter = count.of if isinstance(count, Share) else count
        if isinstance(parameter, str) and parameter not in scenario.parameters:
            yield f"{place}.count: there is no parameter {parameter[:80]!r}"


def _entries(place: str, declared: Sequence[tuple[str, Count]]) -> Iterator[tuple[str, str, Count]]:
    return ((f"{place}.{number}", name, count) for number, (name, count) in enumerate(declared))
