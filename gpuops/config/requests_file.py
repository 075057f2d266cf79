"""Requests for places of VMs, as options, YAML or CSV, checked and made into workloads.

`templates/requests.yaml` is the commented example. A CSV file has the same keys as its columns, one request per line,
and an empty cell is a key that is not given. `gpuops place` and the module `gpu_placement` read them here.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpuops.errors import PolicyError, UsageError
from gpuops.files.wrong_value import reason
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.workloads.workload import Vgpus, Workload, memory_mib, moment

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Checks that this function can read the text; what it refuses is the key's error."""

    def check(text: str) -> str:
        try:
            parse(text)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return text

    return AfterValidator(check)


def _parts(value: Any) -> Any:
    """One cell of a CSV file, or one word of a YAML file, for what may be several: `a; b`."""
    return [part.strip() for part in value.split(";") if part.strip()] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[Text, _read_by(memory_mib)]
Moment = Annotated[Text, _read_by(moment)]
Texts = Annotated[list[Text], Field(max_length=64), BeforeValidator(_parts, json_schema_input_type=list[Text] | Text)]


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


Profiles = Annotated[
    list[VgpusSection],
    Field(max_length=64),
    BeforeValidator(_named),
    BeforeValidator(_parts, json_schema_input_type=list[VgpusSection | Text] | Text),
]
Addresses = Annotated[
    list[Annotated[Text, _read_by(PciAddress.parse)]],
    Field(max_length=64),
    BeforeValidator(_parts, json_schema_input_type=list[Text] | Text),
]


class RequestSection(BaseModel):
    """One request as people write it; `workload` is the same as the planner takes it, in its units and types."""

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


_LONGEST_SHOWN: Final = 80
_HINT: Final = "templates/requests.yaml shows every key, with comments"


class RequestsFile(BaseModel):
    """The whole YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    version: Literal[1]
    requests: list[RequestSection] = Field(min_length=1)


def load_requests(path: Path) -> tuple[Workload, ...]:
    """The requests in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    text = read_text(path)
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return parse_requests(text, str(path))
        case ".csv":
            return parse_csv(text, str(path))
        case _:
            raise PolicyError(f"{path}: neither .yaml nor .csv", hint=_HINT)


def request_of(options: Mapping[str, object]) -> Workload:
    """The one request that these options make, as the command line has them. Raises UsageError."""
    keys = {option.replace("-", "_"): value for option, value in options.items()}
    match keys.get("profile"):
        case [only]:
            keys["profile"] = only
        case [_, *_] as several:
            if "count" in keys:
                raise UsageError(
                    "--count means nothing with several --profile", hint="say --profile once for each vGPU"
                )
            keys["profiles"] = several
            del keys["profile"]
        case _:
            pass
    try:
        return RequestSection.model_validate({"name": "request", **keys}).workload()
    except ValidationError as error:
        missing = [f"--{found['loc'][0]}".replace("_", "-") for found in error.errors() if found["type"] == "missing"]
        if missing:
            raise UsageError(f"place needs {' and '.join(missing)}, or --file", hint="gpuops place --help") from error
        raise UsageError(_first(error.errors()).replace("`", ""), hint="gpuops place --help") from error


def parse_requests(text: str, name: str) -> tuple[Workload, ...]:
    """The requests of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    return _checked(parse_yaml(text, name), name)


def requests_of(requests: list[dict[str, object]], name: str) -> tuple[Workload, ...]:
    """The requests of a list of mappings with the keys of the YAML file. Raises PolicyError."""
    return _checked({"version": 1, "requests": requests}, name)


def _checked(content: object, name: str) -> tuple[Workload, ...]:
    try:
        found = RequestsFile.model_validate(content)
    except ValidationError as error:
        raise PolicyError(f"{name}: {_first(error.errors())}", hint=_HINT) from error
    return _once((section.workload() for section in found.requests), name)


def parse_csv(text: str, name: str) -> tuple[Workload, ...]:
    """The requests of a CSV text with a header line. Raises PolicyError."""
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [column.strip() for column in next(lines, [])]
        _check_header(header, name)
        found = [_row(header, cells, f"{name}: line {lines.line_num}") for cells in lines if cells]
    except csv.Error as error:
        raise PolicyError(f"{name}: line {lines.line_num}: is not CSV: {error}", hint=_HINT) from error
    if not found:
        raise PolicyError(f"{name}: there is no request in it", hint=_HINT)
    return _once(found, name)


def _check_header(header: list[str], name: str) -> None:
    known = ", ".join(RequestSection.model_fields)
    if len(header) == 1 and len(re.split("[;\t]", header[0])) > 1:
        hint = "columns are separated by commas; a semicolon parts the values of one cell"
        raise PolicyError(f"{name}: line 1: is one column, {_cut(header[0])}", hint=hint)
    for column, times in Counter(header).items():
        if column not in RequestSection.model_fields:
            raise PolicyError(f"{name}: line 1: unknown column {_cut(column)}", hint=f"columns: {known}")
        if times > 1:
            raise PolicyError(f"{name}: line 1: the column {column!r} is there twice")
    if not header:
        raise PolicyError(f"{name}: is empty", hint=f"the first line names the columns: {known}")


def _cut(column: str) -> str:
    return repr(column if len(column) <= _LONGEST_SHOWN else f"{column[:_LONGEST_SHOWN]}…")


def _row(header: list[str], cells: list[str], place: str) -> Workload:
    if len(cells) != len(header):
        raise PolicyError(f"{place}: {len(cells)} cells under {len(header)} columns")
    given = {column: cell.strip() for column, cell in zip(header, cells, strict=True) if cell.strip()}
    try:
        return RequestSection.model_validate_strings(given).workload()
    except ValidationError as error:
        raise PolicyError(f"{place}: {_first(error.errors())}", hint=_HINT) from error


def _once(found: Iterable[Workload], name: str) -> tuple[Workload, ...]:
    """The workloads, if each name is there once: results are told by name."""
    workloads = tuple(found)
    twice = [known for known, times in Counter(workload.name for workload in workloads).items() if times > 1]
    if twice:
        raise PolicyError(f"{name}: the request {twice[0]!r} is there twice", hint="give each request its own name")
    return workloads


def _first(found: list[ErrorDetails]) -> str:
    details = found[0]
    key = ".".join(str(part) for part in details["loc"])
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{key}: {reason(details)}{more}" if key else f"{reason(details)}{more}"
