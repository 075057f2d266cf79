"""Reads fault files, which say what goes wrong in a served simulated vCenter.

faults:
  - T2                              # by id, as it stands in the catalogue
  - fault: V1                       # by id, aimed
    target: "vdi-00*"
    skip: 3
  - effect: fault                   # a rule of one's own
    method: PowerOnVM_Task
    fault: NoCompatibleHost
    probability: 0.1
    times: null
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.fault_injection.catalogue import catalogue, rules_of
from gpuops.sim.fault_injection.injector import checked
from gpuops.sim.fault_injection.rule import Rule
from gpuops.sim.outside_events.by_name import OUTSIDE_EVENTS


def read(path: Path) -> tuple[Rule, ...]:
    """The rules of a fault file, in its order. Raises UsageError, which names the entry."""
    document = parse_yaml(read_text(path), str(path))
    if not isinstance(document, dict) or set(document) != {"faults"} or not isinstance(document["faults"], list):
        raise UsageError(
            f"the fault file {path} is not one list named `faults`", hint="as in: `faults: [T2, {fault: V1, skip: 3}]`"
        )
    return parse(document["faults"], str(path))


def parse(entries: Sequence[Any], where: str) -> tuple[Rule, ...]:
    """The rules of these entries, in their order. Raises UsageError, which names the entry and `where` it stands."""
    rules: list[Rule] = []
    for number, entry in enumerate(entries, start=1):
        try:
            rules += [checked(rule, OUTSIDE_EVENTS) for rule in _rules(entry)]
        except UsageError as error:
            raise UsageError(f"{where}, fault {number}: {error.message}", hint=error.hint) from error
    return tuple(rules)


def _rules(entry: Any) -> tuple[Rule, ...]:
    if isinstance(entry, str):
        return rules_of(entry)
    if not isinstance(entry, Mapping):
        raise UsageError(f"{entry!r} is neither an id nor a rule")
    # `fault` is an id of the catalogue, or the API's fault of a rule that says its effect itself
    if "effect" in entry or str(entry.get("fault")) not in catalogue():
        return (Rule.from_json(entry),) if "effect" in entry else rules_of(str(entry.get("fault")))
    return rules_of(entry["fault"], {key: value for key, value in entry.items() if key != "fault"})
