"""What one request may say, in a file or by options, checked at the door."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpuops.errors import UsageError
from gpuops.model.gpu import PciAddress
from gpuops.model.numa import NumaPolicy
from gpuops.model.workload import Vgpus, Workload, memory_mib, moment


def _size(text: str) -> str:
    try:
        memory_mib(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    return text


def _moment(text: str) -> str:
    try:
        moment(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    return text


def _address(text: str) -> str:
    try:
        PciAddress.parse(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    return text


def _parts(value: Any) -> Any:
    """One cell of a CSV file, or one word of a YAML file, for what may be several: `a; b`."""
    return [part.strip() for part in value.split(";") if part.strip()] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[Text, AfterValidator(_size)]
Moment = Annotated[Text, AfterValidator(_moment)]
Texts = Annotated[list[Text], Field(max_length=64), BeforeValidator(_parts)]


def _named(value: Any) -> Any:
    """A profile by its name alone is one vGPU of it."""
    return (
        [{"profile": part} if isinstance(part, str) else part for part in value] if isinstance(value, list) else value
    )


class VgpusSection(BaseModel):
    """vGPUs of one profile."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    profile: Text
    count: int = Field(default=1, ge=1, le=64)


Profiles = Annotated[list[VgpusSection], Field(max_length=64), BeforeValidator(_named), BeforeValidator(_parts)]
Addresses = Annotated[list[Annotated[Text, AfterValidator(_address)]], Field(max_length=64), BeforeValidator(_parts)]


class RequestSection(BaseModel):
    """One request."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    name: Text
    vcpu: int = Field(ge=1, le=4096)
    memory: Size
    profile: Text | None = None
    count: int | None = Field(default=None, ge=1, le=64)
    profiles: Profiles = Field(default_factory=list)
    gpus: int | None = Field(default=None, ge=1, le=64)
    model: Text | None = None
    label: Text | None = None
    device: Addresses = Field(default_factory=list)
    device_group: Text | None = None
    numa: Literal["required", "preferred", "none"] = "preferred"
    cluster: Text | None = None
    host: Text | None = None
    tag: Texts = Field(default_factory=list)
    affinity: Text | None = None
    anti_affinity: Text | None = None
    spread: Text | None = None
    priority: int = Field(default=0, ge=-1000, le=1000)
    until: Moment | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> RequestSection:
        kinds = (self.profile, self.profiles or None, self.gpus, self.device or None, self.device_group)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError(
                "say either `profile` (vGPUs) or `gpus` (whole GPUs) or `device` (given ones) or `device_group`"
            )
        if self.profile is None and self.count is not None:
            raise ValueError("`count` is the number of vGPUs of `profile`: without it it means nothing")
        if self.gpus is None and (self.model is not None or self.label is not None):
            raise ValueError("`model` and `label` go with `gpus`: they choose among whole GPUs")
        return self

    def workload(self) -> Workload:
        first, *more = self._vgpus() or (Vgpus("", 1),)
        return Workload(
            name=self.name,
            vcpus=self.vcpu,
            memory_mib=memory_mib(self.memory),
            profile=first.profile or None,
            count=first.count,
            more=tuple(more),
            gpus=self.gpus or 0,
            model=self.model,
            numa=NumaPolicy(self.numa),
            cluster=self.cluster,
            host=self.host,
            affinity=self.affinity,
            anti_affinity=self.anti_affinity,
            spread=self.spread,
            priority=self.priority,
            until=None if self.until is None else moment(self.until),
            device=tuple(dict.fromkeys(map(PciAddress.parse, self.device))),
            device_group=self.device_group,
            label=self.label,
            tag=tuple(dict.fromkeys(self.tag)),
        )

    def _vgpus(self) -> tuple[Vgpus, ...]:
        """Each profile once, with all that is asked for of it."""
        if self.profile is not None:
            return (Vgpus(self.profile, self.count or 1),)
        counts: dict[str, int] = {}
        for each in self.profiles:
            counts[each.profile] = counts.get(each.profile, 0) + each.count
        return tuple(Vgpus(profile, count) for profile, count in counts.items())
