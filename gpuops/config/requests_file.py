"""Reads and checks the files of two commands: requests for places of VMs, and workloads that are to share GPUs.

Requests for places come as options, YAML or CSV; `templates/requests.yaml` is the commented example. A CSV file
has the same keys as its columns, one request per line, and an empty cell is a key that is not given. `gpuops place` and
the module `gpu_placement` read them here.

Workloads come as YAML: how busy each keeps a GPU alone, and pairs that were seen to share one.
`templates/workloads.yaml` is the commented example. `gpuops size` reads it here.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import MISSING, Section, WrongContent, decode, keys_of, read_as
from gpuops.errors import PolicyError, UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.shared_gpu import SharingWorkloads, read_share
from gpuops.model.file_keys import Before, Key, Reads, Text, reads_by
from gpuops.model.workloads.workload import Vgpus, Workload


def _split_cell(cell: Any) -> Any:
    """Return the texts of a cell of a CSV file, `a; b`, as a list; everything else is decoded as it is."""
    return [part.strip() for part in cell.split(";") if part.strip()] if isinstance(cell, str) else cell


Texts = Annotated[tuple[Text, ...], Meta(max_length=64), Before(_split_cell, tuple[Text, ...] | Text)]


def _profile_mappings(profiles: Any) -> Any:
    """Return the profiles as mappings; a name alone stands for one vGPU of this profile."""
    if not isinstance(profiles, list):
        return profiles
    return [{"profile": profile} if isinstance(profile, str) else profile for profile in profiles]


Profiles = Annotated[
    tuple[Vgpus, ...],
    Meta(max_length=64),
    Before(lambda value: _profile_mappings(_split_cell(value)), tuple[Vgpus | Text, ...] | Text),
]
Addresses = Annotated[
    tuple[Annotated[PciAddress, reads_by(PciAddress.parse)], ...],
    Meta(max_length=64),
    Before(_split_cell, tuple[Text, ...] | Text),
]


_CountOrZero = Annotated[int, Reads(lambda number: number or 0, Annotated[int, Meta(ge=1, le=64)] | None)]
"""A whole number from 1 on; 0 = the key is missing or null."""


def _without_repetitions(elements: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(elements))


@dataclass(frozen=True, slots=True)
class RequestEntry(Workload):
    """One request as people write it; `workload` is the same as the planner takes it, in its units and types."""

    count: _CountOrZero = 0
    more: Annotated[Profiles, Key("profiles")] = ()
    gpus: _CountOrZero = 0
    device: Annotated[tuple[PciAddress, ...], Reads(_without_repetitions, Addresses)] = ()
    tag: Annotated[tuple[str, ...], Reads(_without_repetitions, Texts)] = ()

    def __post_init__(self) -> None:
        kinds = (self.profile, self.more or None, self.gpus or None, self.device or None, self.device_group)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError(
                "give one of `profile` (vGPUs), `gpus` (whole GPUs), `device` (GPUs by address) and `device_group`"
            )
        if self.profile is None and self.count:
            raise ValueError(
                "`count` is the number of vGPUs of `profile`, which is missing: add `profile` or remove `count`"
            )
        if not self.gpus and (self.model is not None or self.label is not None):
            raise ValueError("`model` and `label` select whole GPUs: they need `gpus`")

    def workload(self) -> Workload:
        """Return the workload; entries of the same profile are added up."""
        counts: Counter[str] = Counter()  # vGPUs by profile
        for vgpus in self.more if self.profile is None else (Vgpus(self.profile, self.count or 1),):
            counts[vgpus.profile] += vgpus.count
        first, *further = [Vgpus(*profile_count) for profile_count in counts.items()] or (Vgpus("", 1),)
        settings = {field.name: getattr(self, field.name) for field in fields(Workload)}
        return Workload(**settings | {"profile": first.profile or None, "count": first.count, "more": tuple(further)})


_LONGEST_SHOWN: Final = 80
_HINT: Final = "templates/requests.yaml shows every key, with comments"


class RequestsFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    requests: Annotated[tuple[RequestEntry, ...], Meta(min_length=1)]


def load_requests(path: Path) -> tuple[Workload, ...]:
    """Return the requests in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    text = read_text(path)
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return parse_requests(text, str(path))
        case ".csv":
            return parse_csv(text, str(path))
        case _:
            raise PolicyError(f"{path} is neither a .yaml nor a .csv file", hint="rename the file to .yaml or .csv")


def request_of(options: Mapping[str, object]) -> Workload:
    """Return the one request that these options of the command line describe. Raises UsageError."""
    keys = {option.replace("-", "_"): value for option, value in options.items()}
    match keys.get("profile"):
        # the option is a list; in a request, one profile has the key `profile`, several have `profiles`
        case [profile]:
            keys["profile"] = profile
        case [_, *_] as profiles:
            if "count" in keys:
                raise UsageError(
                    "--count and several --profile exclude each other",
                    hint="repeat --profile for each vGPU, without --count",
                )
            keys["profiles"] = profiles
            del keys["profile"]
        case _:
            pass
    try:
        return decode(RequestEntry, {"name": "request", **keys}).workload()
    except WrongContent as error:
        missing = [f"--{place[0]}".replace("_", "-") for place, reason, _ in error.mistakes if reason == MISSING]
        if missing:
            raise UsageError(
                f"place needs {' and '.join(missing)}, or --file", hint="gpuops place --help shows examples"
            ) from error
        raise UsageError(str(error).replace("`", ""), hint="gpuops place --help shows examples") from error


def parse_requests(text: str, name: str) -> tuple[Workload, ...]:
    """Return the requests of a YAML text; errors call it `name`. Raises PolicyError."""
    return _read_requests(parse_yaml(text, name), name)


def requests_of(requests: list[dict[str, object]], name: str) -> tuple[Workload, ...]:
    """Return the requests of a list of mappings with the keys of the YAML file. Raises PolicyError."""
    return _read_requests({"version": 1, "requests": requests}, name)


def _read_requests(content: object, name: str) -> tuple[Workload, ...]:
    requests_file = read_as(RequestsFile, content, name, _HINT)
    return _refuse_repeated_names((entry.workload() for entry in requests_file.requests), name)


def parse_csv(text: str, name: str) -> tuple[Workload, ...]:
    """Return the requests of a CSV text with a header line. Raises PolicyError; errors call the text `name`."""
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [column.strip() for column in next(lines, [])]
        _check_header(header, name)
        workloads = [_decode_row(header, cells, f"{name}: line {lines.line_num}") for cells in lines if cells]
    except csv.Error as error:
        raise PolicyError(f"{name}: line {lines.line_num} is not CSV: {error}", hint=_HINT) from error
    if not workloads:
        raise PolicyError(f"{name}: it contains no request", hint=_HINT)
    return _refuse_repeated_names(workloads, name)


def _check_header(header: list[str], name: str) -> None:
    """Raise PolicyError for a wrong separator, an unknown or repeated column, or no column."""
    columns = ", ".join(keys_of(RequestEntry))
    if len(header) == 1 and len(re.split("[;\t]", header[0])) > 1:
        hint = "separate columns with commas; a semicolon separates the values of one cell"
        raise PolicyError(f"{name}: line 1: there is only one column, {_quote(header[0])}", hint=hint)
    for column, times in Counter(header).items():
        if column not in keys_of(RequestEntry):
            raise PolicyError(f"{name}: line 1: unknown column {_quote(column)}", hint=f"columns: {columns}")
        if times > 1:
            raise PolicyError(f"{name}: line 1: the column {column!r} appears twice", hint="remove one of them")
    if not header:
        raise PolicyError(f"{name}: is empty", hint=f"the first line names the columns: {columns}")


def _quote(column: str) -> str:
    """Return the name of a column in quotes, shortened to 80 characters."""
    return repr(column if len(column) <= _LONGEST_SHOWN else f"{column[:_LONGEST_SHOWN]}…")


def _decode_row(header: list[str], cells: list[str], place: str) -> Workload:
    """Return the request of one line. Raises PolicyError that begins with `place`: file and line."""
    if len(cells) != len(header):
        raise PolicyError(
            f"{place}: the line has {len(cells)} cells, but the header has {len(header)} columns",
            hint="put a cell that contains commas into quotes, and leave cells without a value empty",
        )
    cell_of_column = {column: cell.strip() for column, cell in zip(header, cells, strict=True) if cell.strip()}
    try:
        return decode(RequestEntry, cell_of_column, strict=False).workload()
    except WrongContent as error:
        raise PolicyError(f"{place}: {error}", hint=_HINT) from error


def _refuse_repeated_names(requests: Iterable[Workload], name: str) -> tuple[Workload, ...]:
    """Return the workloads. Raises PolicyError if two have the same name: results are shown by name."""
    workloads = tuple(requests)
    counts = Counter(workload.name for workload in workloads)
    repeated_names = [workload_name for workload_name, count in counts.items() if count > 1]
    if repeated_names:
        raise PolicyError(
            f"{name}: two requests are called {repeated_names[0]!r}", hint="give each request its own name"
        )
    return workloads


_WORKLOADS_HINT: Final = "templates/workloads.yaml shows every key, with comments"


def share_of(text: str, description: str) -> float:
    """Return the share, above 0 and up to 1, in `0.7` or `70%`. Raises UsageError that begins with `description`."""
    try:
        return float(read_share(text))
    except ValueError as error:
        raise UsageError(f"{description} {text}: {error}", hint="write it as 0.7, or as 70%") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsFile(SharingWorkloads):
    """The whole YAML file."""

    version: Literal[1]


def load_workloads(path: Path) -> SharingWorkloads:
    """Return the workloads in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_workloads(read_text(path), str(path))


def parse_workloads(text: str, name: str) -> SharingWorkloads:
    """Return the workloads of a YAML text; errors call it `name`. Raises PolicyError."""
    return read_as(WorkloadsFile, parse_yaml(text, name), name, _WORKLOADS_HINT)
