"""Rotation policies: a YAML file, checked at the door, into `gpuops.model.rotation.Policy`.

`templates/policy.yaml` is the commented example; every key it shows is described there.
"""

from __future__ import annotations

import hashlib
from datetime import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpuops.config.yaml_file import parse_yaml, read_text
from gpuops.errors import PolicyError
from gpuops.model.rotation import Limits, Mark, MlStop, Policy, Pool, QueuedVm, Selector, Window

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


_HINT: Final = "templates/policy.yaml shows every key, with comments"


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name!r} is not an IANA zone such as Europe/Berlin") from error
    return name


Text = Annotated[str, Field(min_length=1, max_length=200)]
Zone = Annotated[Text, AfterValidator(_known_zone)]
Clock = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MarkSection(_Section):
    attribute: Text | None = None
    value: Text | None = None
    tag: Annotated[str, Field(pattern=r"^[^:]+:.+$")] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> MarkSection:
        if (self.attribute is None) == (self.tag is None):
            raise ValueError("say either `attribute` or `tag` (category:name)")
        if self.tag is not None and self.value is not None:
            raise ValueError("a tag has no `value`")
        return self

    def mark(self) -> Mark:
        return Mark(attribute=self.attribute, value=self.value, tag=self.tag)


class SelectSection(_Section):
    folder: Text | None = None
    name: Text | None = None
    profile: Text | None = None
    marks: list[MarkSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _selects_something(self) -> SelectSection:
        if not (self.folder or self.name or self.profile or self.marks):
            raise ValueError("an empty `select` would mean every VM: say folder, name, profile or marks")
        return self

    def selector(self) -> Selector:
        marks = tuple(section.mark() for section in self.marks)
        return Selector(folder=self.folder, name=self.name, profile=self.profile, marks=marks)


class IdleSection(_Section):
    cpu_below_mhz: int = Field(ge=1)


class PoolSection(_Section):
    name: Text
    parked: bool
    select: SelectSection
    idle: IdleSection
    floor: int = Field(default=0, ge=0)
    owner: MarkSection | None = None

    def pool(self) -> Pool:
        return Pool(
            name=self.name,
            select=self.select.selector(),
            cpu_below_mhz=self.idle.cpu_below_mhz,
            parked=self.parked,
            floor=self.floor,
            owner=self.owner.mark() if self.owner else None,
        )


class QueuedSection(_Section):
    vm: Text
    relocate: bool = False


class StopSection(_Section):
    grace_s: int = Field(default=300, ge=0, le=7200)
    then: Literal["power-off", "leave-running"] = "power-off"


class MlSection(_Section):
    queue: list[QueuedSection] = Field(default_factory=list)
    stop: StopSection = StopSection()


class WindowSection(_Section):
    opens: Clock
    closes: Clock
    zone: Zone

    @model_validator(mode="after")
    def _not_empty(self) -> WindowSection:
        if self.opens == self.closes:
            raise ValueError("opens and closes at the same minute: no night fits in it")
        return self

    def window(self) -> Window:
        return Window(time.fromisoformat(self.opens), time.fromisoformat(self.closes), ZoneInfo(self.zone))


class LimitsSection(_Section):
    in_flight: int = Field(default=Limits().in_flight, ge=1, le=256)
    per_host: int = Field(default=Limits().per_host, ge=1, le=64)
    step_timeout_s: int = Field(default=Limits().step_timeout_s, ge=30, le=6 * 3600)


class PolicyFile(_Section):
    version: Literal[1]
    name: Text
    pools: list[PoolSection] = Field(min_length=1)
    ml: MlSection = MlSection()
    window: WindowSection | None = None
    opt_out: MarkSection = MarkSection(attribute="gpuops.opt-out")
    marker: Text = "gpuops.rotation"
    limits: LimitsSection = LimitsSection()

    @model_validator(mode="after")
    def _names_once(self) -> PolicyFile:
        for what, names in (
            ("pool", [pool.name for pool in self.pools]),
            ("VM of the queue", [queued.vm for queued in self.ml.queue]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"the {what} {twice[0]!r} is there twice")
        return self


def load_policy(path: Path) -> Policy:
    """The policy in this file. Raises PolicyError, one line: file, key, reason."""
    return parse_policy(read_text(path), str(path))


def parse_policy(text: str, name: str) -> Policy:
    """The policy of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    content = parse_yaml(text, name)
    if not isinstance(content, dict):
        raise PolicyError(
            f"{name}: {'is empty' if content in (None, '') else 'is no policy: keys are expected'}", hint=_HINT
        )
    try:
        found = PolicyFile.model_validate(content)
    except ValidationError as error:
        raise PolicyError(f"{name}: {_first(error.errors())}", hint=_HINT) from error
    return Policy(
        name=found.name,
        pools=tuple(section.pool() for section in found.pools),
        ml=tuple(QueuedVm(section.vm, section.relocate) for section in found.ml.queue),
        ml_stop=MlStop(found.ml.stop.grace_s, found.ml.stop.then == "power-off"),
        window=found.window.window() if found.window else None,
        opt_out=found.opt_out.mark(),
        marker=found.marker,
        limits=Limits(found.limits.in_flight, found.limits.per_host, found.limits.step_timeout_s),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
    )


def _first(found: list[ErrorDetails]) -> str:
    # a key that nobody knows is often the misspelt one that another error misses
    details = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    key = ".".join(str(part) for part in details["loc"]) or "the file"
    reason = details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        reason = "unknown key"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{key}: {reason}{more}"
