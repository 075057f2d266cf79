"""Makes structures of the vSphere Automation API from SOAP objects, by the table `structures.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.vcenter.vapi_values import OptionalValue, Struct

VCENTER: Final = "com.vmware.vcenter"


def structure_of(name: str, source: Any, /, **own: Any) -> Struct:
    """The structure of this name below com.vmware.vcenter, with the fields of `fields_of`."""
    return Struct(f"{VCENTER}.{name}", fields_of(name, source, **own))


def fields_of(name: str, source: Any, /, **own: Any) -> dict[str, Any]:
    """Its fields: those that the table takes from `source`, and those that only the caller knows."""
    return {field: _value(shown, source, own, field) for field, shown in _table()[name].items()}


def _value(shown: str | None, source: Any, own: Mapping[str, Any], field: str) -> Any:
    if shown is None:
        return own[field]
    if shown == "?":
        return OptionalValue(own.get(field))
    if shown.startswith("="):
        return shown[1:]
    setting = attrgetter(shown.rstrip("?!^"))(source)
    match shown[-1]:
        case "?":
            return OptionalValue(setting)
        case "!":
            return bool(setting)
        case "^":
            return str(setting).upper()
        case _:
            return setting


@cache
def _table() -> Mapping[str, Mapping[str, str | None]]:
    path = Path(__file__).with_name("structures.yaml")
    table: Any = parse_yaml(read_text(path), path.name)
    return dict(table)
