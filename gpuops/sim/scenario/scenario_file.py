"""Reads and checks scenario files: YAML that declares what a simulated vCenter contains, part by part as in
`declared.py`."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import yaml
from msgspec import Meta, field

from gpuops.errors import PolicyError
from gpuops.files.bundle_file import SCENARIO, SUFFIX, read_member
from gpuops.files.yaml_file import describe_mismatch, parse_yaml, read_text
from gpuops.sim.scenario import bundle
from gpuops.sim.scenario.declared import (
    NAMES_AND_COUNTS,
    ClusterDeclared,
    DatastoreDeclared,
    Declared,
    DesktopPoolDeclared,
    DirectPathProfileDeclared,
    GuestDeclared,
    ModelDeclared,
    ReservationDeclared,
    SwitchDeclared,
    VmsDeclared,
    wrong_repetitions,
)

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: eight times faster. For the scenarios that gpuops brings alone: it
has no limit of depth, and a file of 50,000 brackets ends the process."""


class ScenarioFile(Declared, frozen=True, kw_only=True):
    """A whole scenario."""

    description: str
    start: Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
    parameters: dict[str, int] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The least and the most a parameter may be."""
    options: dict[str, bool] = field(default_factory=dict)
    """Advanced settings of the vCenter: `vgpu.hotmigrate.enabled`."""
    busy: Literal["queue", "refuse"] = "queue"
    """What becomes of a task of a VM that has one already (`vcenter/tasks.py`)."""
    datacenter: str
    models: dict[str, ModelDeclared]
    guests: dict[str, GuestDeclared]
    datastores: tuple[DatastoreDeclared, ...]
    networks: tuple[str, ...]
    clusters: tuple[ClusterDeclared, ...]
    vms: tuple[VmsDeclared, ...]
    switches: tuple[SwitchDeclared, ...] = ()
    """Distributed switches."""
    desktop_pools: tuple[DesktopPoolDeclared, ...] = ()
    api_version: str | None = None
    """`9.0.0.0`: of vSphere's API, whose release the hosts have too; None = that of `world.py`."""
    direct_path_profiles: tuple[DirectPathProfileDeclared, ...] = ()
    reservations: tuple[ReservationDeclared, ...] = ()

    @classmethod
    def of(cls, content: object) -> ScenarioFile:
        """The scenario that plain values declare. Raises msgspec.ValidationError for the first that is wrong."""
        return msgspec.convert(content, cls)


def names() -> tuple[str, ...]:
    """The scenarios that gpuops brings; a `NAME-policy.yaml` beside one is a rotation policy made for it."""
    files = resources.files("gpuops.sim").joinpath("scenarios").iterdir()
    names = (file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return tuple(sorted(name for name in names if not name.endswith("-policy")))


def read(spelled: str) -> tuple[ScenarioFile, dict[str, int]]:
    """Return a scenario and its parameters.

    `spelled` is a name such as `lab` or `fleet:hosts=200,vms=2000`, a YAML file, or a bundle that `gpuops bundle`
    wrote. Raises PolicyError for an unknown name or parameter, a value out of range, or a file with wrong fields.
    """
    name, _, settings = spelled.partition(":")
    if name.endswith(SUFFIX):
        scenario = _decode_scenario(read_member(Path(name), SCENARIO), name)
        bundle.check(scenario, name)
    elif name.endswith((".yaml", ".yml")):
        scenario = parse(read_text(Path(name)), name)
    else:
        scenario = _decode_scenario(_bundled_text(name), name)
    return scenario, _parameters(scenario, name, settings)


@cache
def _bundled_text(name: str) -> object:
    """The content of a scenario that gpuops brings; read once, as it never changes."""
    if name not in names():
        raise PolicyError(
            f"no scenario {name!r}", hint=f"there are {', '.join(names())}, or name a YAML file or a bundle"
        )
    text = resources.files("gpuops.sim").joinpath("scenarios", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  safe either way


def parse(text: str, name: str) -> ScenarioFile:
    """The scenario in the YAML text of a file. Raises PolicyError."""
    return _decode_scenario(parse_yaml(text, name, merges=True), name)


def _decode_scenario(content: object, name: str) -> ScenarioFile:
    """The scenario that plain values declare. Raises PolicyError for the first that is wrong."""
    try:
        scenario = ScenarioFile.of(content)
    except msgspec.ValidationError as error:
        raise PolicyError(f"scenario {name}: {_wrong_entry(content) or describe_mismatch(error)}") from error
    if reason := next(wrong_repetitions(scenario), None):
        raise PolicyError(f"scenario {name}: {reason}", hint=NAMES_AND_COUNTS)
    return scenario


def _wrong_entry(content: object) -> str:
    """What is wrong with a server model or a guest, whose name msgspec does not tell; '' = nothing."""
    for section, kind in (("models", ModelDeclared), ("guests", GuestDeclared)):
        entries = content.get(section) if isinstance(content, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                msgspec.convert(entry, kind)
            except msgspec.ValidationError as error:
                return describe_mismatch(error, f"{section}.{name}")
    return ""


def _parameters(scenario: ScenarioFile, name: str, settings: str) -> dict[str, int]:
    values = dict(scenario.parameters)
    for setting in filter(None, settings.split(",")):
        key, _, text = setting.partition("=")
        if key not in values or not text.isdigit():
            known = ", ".join(f"{name}={value}" for name, value in scenario.parameters.items()) or "none"
            raise PolicyError(f"scenario {name} has no parameter {setting!r}", hint=f"its parameters: {known}")
        values[key] = int(text)
        least, most = scenario.limits.get(key, (1, values[key]))
        if not least <= values[key] <= most:
            raise PolicyError(f"scenario {name}: {key}={text} is out of range", hint=f"from {least} to {most}")
    return values
