"""Compares an inventory read over VI/JSON with one read over SOAP, while the vCenter is in use.

The read over VI/JSON is between two reads over SOAP. A value that differs between these two is not compared, because it
changes by itself. A value may also change and change back, so a difference is checked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from gpuops.errors import GpuopsError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import Difference
from gpuops.vsphere.reading.collect import inventory
from gpuops.vsphere.session import Session

ROUNDS: Final = 3
MOST_SHOWN: Final = 20
_LONGEST_SHOWN: Final = 120
_SNAPSHOT_TIME: Final = "taken_at"


def compare(session: Session) -> tuple[Inventory, tuple[Difference, ...], str]:
    """Return a snapshot read over SOAP, the first twenty differences of VI/JSON, and the error of VI/JSON ('' = none).

    Afterwards the session reads over SOAP. Raises NotConnected and its subclasses if the reads over SOAP fail.
    """
    session.read_over_soap()
    before = inventory(session)
    value_differences: list[Difference] = []
    for _ in range(ROUNDS):
        session.read_over_vi_json(alone=True)
        try:
            json_snapshot = inventory(session)
        except GpuopsError as error:
            return before, (), error.message
        finally:
            session.read_over_soap()
        after = inventory(session)
        # values that differ between two reads over SOAP change by themselves, as the time of the snapshot always does
        changing_paths = {path for path, _, _ in differences(before, after)} | {_SNAPSHOT_TIME}
        value_differences = [
            Difference(path, repr(soap)[:_LONGEST_SHOWN], repr(json)[:_LONGEST_SHOWN])
            for path, soap, json in differences(before, json_snapshot)
            if path not in changing_paths
        ]
        if not value_differences:
            break
        before = after
    return before, tuple(value_differences[:MOST_SHOWN]), ""


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of each innermost difference of two values of the model."""
    if first == second:
        return
    if is_dataclass(first) and type(first) is type(second):
        for field in fields(first):
            if field.compare:
                field_values = getattr(first, field.name), getattr(second, field.name)
                yield from differences(*field_values, _below(path, field.name))
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys((*first, *second)):
            yield from differences(first.get(key), second.get(key), _below(path, str(key)))
    elif isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        for index, (first_element, second_element) in enumerate(zip(first, second, strict=True)):
            yield from differences(first_element, second_element, _below(path, str(index)))
    else:
        yield path, first, second


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
