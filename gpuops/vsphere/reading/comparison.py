"""Compares what is read over VI/JSON with what is read over SOAP, on a vCenter that goes on living meanwhile.

What is read over VI/JSON lies between two reads over SOAP: a value in which these two differ changes by itself, and is
not compared. A value that changes and changes back may still look like a difference, so one is looked for again.
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
_OF_THE_MOMENT: Final = "taken_at"


def compare(session: Session) -> tuple[Inventory, tuple[Difference, ...], str]:
    """A snapshot, the values (the first twenty) in which VI/JSON differs, and why VI/JSON failed ('' = it did not).

    The session reads over SOAP afterwards. Raises NotConnected in its kinds for SOAP.
    """
    session.read_over_soap()
    before = inventory(session)
    found: list[Difference] = []
    for _ in range(ROUNDS):
        session.read_over_vi_json(alone=True)
        try:
            told = inventory(session)
        except GpuopsError as error:
            return before, (), error.message
        finally:
            session.read_over_soap()
        after = inventory(session)
        moving = {path for path, _, _ in differences(before, after)} | {_OF_THE_MOMENT}
        found = [
            Difference(path, _shown(soap), _shown(json))
            for path, soap, json in differences(before, told)
            if path not in moving
        ]
        if not found:
            break
        before = after
    return before, tuple(found[:MOST_SHOWN]), ""


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The innermost values in which two values of the model differ, each with its path and both values."""
    if one == other:
        return
    if is_dataclass(one) and type(one) is type(other):
        for field in fields(one):
            if field.compare:
                yield from differences(getattr(one, field.name), getattr(other, field.name), _below(path, field.name))
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from differences(one.get(key), other.get(key), _below(path, str(key)))
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, _below(path, str(index)))
    else:
        yield path, one, other


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    return repr(value)[:_LONGEST_SHOWN]
