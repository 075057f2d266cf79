"""Programs that move CUDA calls over the network, as YAML, checked and made into values.

`templates/remote-gpu` has one file for each that comes with gpuops; a pool names it, or a file of one's own.

A file runs shell scripts in guests: whoever may write it may do there what the login for guests may. The client's
environment is Jinja2 in a sandbox, so that a file does nothing on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gpuops.config.file import NOT_PARSED
from gpuops.config.private_file import replaceable
from gpuops.config.sections.section import Section, Text
from gpuops.config.templates import templates
from gpuops.config.wrong_value import reason
from gpuops.config.yaml_file import parse_yaml, read_text
from gpuops.errors import PolicyError, UsageError
from gpuops.model.workloads.remote_gpu import (
    ClientScripts,
    CutOff,
    LeaseKey,
    MemoryLimit,
    Release,
    RemoteProgram,
    ServerScripts,
)

FOLDER: Final = "remote-gpu"
_HINT: Final = "templates/remote-gpu/lupine.yaml shows every key, with comments"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TRIED: Final = {
    "lease": "0",
    "key_file": "/key",
    "shares": [{"address": "192.0.2.1", "port": 1, "gpu": 0, "memory_mib": 1, "told": ""}],
}
"""With what an environment is tried when its file is read."""


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("should be of small letters, digits and - between them, 50 at the most")
    return text


def _date(text: str) -> str:
    if text and not _DATE.fullmatch(text):
        raise ValueError("is no date: write it as '2026-11-27', in quotes")
    return text


def _page(text: str) -> str:
    if not text.startswith("https://"):
        raise ValueError("is no address of a page; it begins with https://")
    return text


def _script(text: str) -> str:
    if any(not (each.isprintable() or each in "\n\t") for each in text):
        raise ValueError("has a control character in it")
    return text


Page = Annotated[Text, AfterValidator(_page)]
Day = Annotated[str, AfterValidator(_date)]
Script = Annotated[str, Field(max_length=10_000), AfterValidator(_script)]
NeededScript = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_script)]


class ReleaseSection(Section):
    """How alive it is."""

    version: Annotated[str, Field(max_length=50)] = ""
    date: Day = ""
    seen: Day
    page: Page


class PortsSection(Section):
    """Each share that a server lends has one of them."""

    first: int = Field(ge=1024, le=65535)
    count: int = Field(default=64, ge=1, le=1000)

    @model_validator(mode="after")
    def _within(self) -> PortsSection:
        if self.first + self.count - 1 > 65535:
            raise ValueError("`first` and `count` reach beyond port 65535")
        return self


class ServerSection(Section):
    """Scripts for the guests of servers."""

    start: NeededScript
    stop: NeededScript
    check: NeededScript
    admit: NeededScript
    dismiss: NeededScript
    used: Script = ""


class ClientSection(Section):
    """What is made in the guests of clients."""

    environment: NeededScript
    enter: Script = ""
    leave: Script = ""


class RemoteGpuFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    program: Annotated[str, AfterValidator(_name)]
    kind: Literal["open", "commercial"]
    licence: Text
    release: ReleaseSection
    memory: Literal["program", "promise"]
    key: Literal["none", "client"]
    cut_off: Literal["server", "client"]
    most_shares: int | None = Field(default=None, ge=1)
    ports: PortsSection
    server: ServerSection
    client: ClientSection
    pages: dict[Text, Page] = Field(default_factory=dict)
    from_memory: dict[Text, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _watched(self) -> RemoteGpuFile:
        if self.memory == "promise" and not self.server.used:
            raise ValueError("`memory: promise` needs `server.used`: a promise that nobody measures is none")
        return self

    @model_validator(mode="after")
    def _rendered(self) -> RemoteGpuFile:
        try:
            rendered(self.client.environment, _TRIED)
        except UsageError as error:
            raise ValueError(f"client.environment: {error.message}") from error
        return self

    def program_of(self) -> RemoteProgram:
        return RemoteProgram(
            name=self.program,
            server=ServerScripts(**self.server.model_dump()),
            client=ClientScripts(**self.client.model_dump()),
            memory=MemoryLimit(self.memory),
            key=LeaseKey(self.key),
            cut_off=CutOff(self.cut_off),
            first_port=self.ports.first,
            ports=self.ports.count,
            most_shares=self.most_shares,
            release=Release(**self.release.model_dump()),
            pages=self.pages,
        )


def known_programs() -> tuple[str, ...]:
    """The programs that come with gpuops, by name."""
    begin, end = f"{FOLDER}/", ".yaml"
    return tuple(
        name.removeprefix(begin).removesuffix(end)
        for name in templates()
        if name.startswith(begin) and name.endswith(end)
    )


def is_known_name(named: str) -> bool:
    """Whether that is how programs that come with gpuops are named; else it is the path of a file."""
    return _NAME.fullmatch(named) is not None


def load_program(named: str) -> RemoteProgram:
    """The program of that name, or of a file at that path. Raises PolicyError, UsageError."""
    if is_known_name(named):
        if named not in known_programs():
            message = f"no program {named!r} comes with gpuops, which knows {', '.join(known_programs())}"
            raise UsageError(message, hint=f"name a file of your own by its path: ./{named}.yaml")
        return load_remote_gpu(templates()[f"{FOLDER}/{named}.yaml"])
    path = Path(named)
    if path.exists() and (opening := replaceable(path)) is not None:  # a book in a database may name any path
        message = f"{path} is not used, for its scripts run in guests: {opening.why}"
        raise UsageError(message, hint=opening.fix)
    return load_remote_gpu(path)


def load_remote_gpu(path: Path) -> RemoteProgram:
    """The program of that file. Raises PolicyError, UsageError."""
    return parse_remote_gpu(read_text(path), str(path))


def parse_remote_gpu(text: str, name: str) -> RemoteProgram:
    """The program of that text, called `name` in errors. Raises PolicyError."""
    try:
        return RemoteGpuFile.model_validate(parse_yaml(text, name)).program_of()
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(part) for part in details["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise PolicyError(f"{name}: {key}{': ' if key else ''}{reason(details)}{more}", hint=_HINT) from error


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The text with these values in it. Raises UsageError for one that cannot be made."""
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    world = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    try:
        return world.from_string(template).render(**values)
    except (TemplateError, AttributeError, *NOT_PARSED) as error:
        raise UsageError(f"the environment cannot be made: {error or type(error).__name__}", hint=_HINT) from error
