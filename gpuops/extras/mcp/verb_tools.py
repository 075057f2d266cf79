"""The tools of `gpuops mcp`: a table of commands that read or plan, and the options that an assistant may set.

The schema of a tool is made from the options of its command, and these from the annotated fields of its request.
No tool has an option that names a file: the admin who starts the server chooses the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_origin

SCOPE: Final = ("cluster", "host")
DEVICES: Final = ("profile", "count", "device", "dynamic", "label", "device_type", "device_group")
REQUEST: Final = ("profile", "count", "gpus", "model", "label", "device", "device_group", "vcpu", "memory", "numa")
DRY_RUN: Final = ("--dry-run",)


@dataclass(frozen=True, slots=True)
class VerbTool:
    """A tool: the command that it runs, the options that a call may set, and those that every call has."""

    name: str
    command: str
    options: tuple[str, ...] = ()
    """Names of the command's parameters."""
    fixed: tuple[str, ...] = ()


VERB_TOOLS: Final = (
    VerbTool("inventory", "inventory", (*SCOPE, "vms", "profile", "holder", "free", "limit")),
    VerbTool("capacity", "capacity", (*SCOPE, "profile", "forecast")),
    VerbTool("profiles", "profiles", ("model",)),
    VerbTool("place", "place", (*REQUEST, *SCOPE, "tag", "until", "suspended", "keep_free", "explain")),
    VerbTool(
        "attach_plan",
        "attach",
        ("vm", *DEVICES, "replace", "add", "move", "pin", "numa", "power", "host", "keep_free", "explain"),
        DRY_RUN,
    ),
    VerbTool("detach_plan", "detach", ("vm", *DEVICES, "all", "power", "explain"), DRY_RUN),
    VerbTool("defrag_plan", "defrag", (*SCOPE, "profile", "max_moves", "budget", "powered_off", "pin"), DRY_RUN),
    VerbTool("doctor", "doctor", (*SCOPE, "assumptions")),
    VerbTool("readiness", "readiness", SCOPE),
    VerbTool("idle", "idle", ("pool", "vm")),
    VerbTool("queue", "queue", ("at",)),
    VerbTool("rotate_plan", "rotate plan", ("at", "every_vm")),
    VerbTool("rotate_status", "rotate status"),
    VerbTool("history", "history", ("since", "kind", "limit")),
    VerbTool("change_status", "change status"),
    VerbTool("job_list", "job list"),
    VerbTool("gpu_modes", "host mode show", SCOPE),
    VerbTool("mig_instances", "host mig show", SCOPE),
)

_JSON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


class ToolCommand:
    """A tool with the command that it runs, found below the root of the command line."""

    def __init__(self, tool: VerbTool, root: Any) -> None:
        self.tool = tool
        self.command = root
        for word in tool.command.split():
            self.command = self.command.commands[word]
        parameters = {parameter.name: parameter for parameter in self.command.params}
        self.parameters = {name: parameters[name] for name in tool.options}
        self.takes_policy = "policy" in parameters

    @property
    def description(self) -> str:
        """What the command does, without its examples."""
        summary = (self.command.help or "").partition("\b")[0]
        plan = "Only plans: --dry-run is always set.\n\n" if self.tool.fixed else ""
        return f"{plan}{summary.strip()}\n\nThe result is the document of `gpuops {self.tool.command} --output json`."

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": {name: _argument_schema(parameter) for name, parameter in self.parameters.items()},
            "required": [name for name, parameter in self.parameters.items() if parameter.required],
            "additionalProperties": False,
        }

    def words(self, arguments: Mapping[str, Any], policy: Path | None) -> list[str]:
        """Return the command line of a call, whose arguments fit the schema, without `gpuops` and its own options."""
        options: list[str] = []
        operands: list[str] = []
        for name, argument in arguments.items():
            parameter = self.parameters[name]
            if not parameter.opts[0].startswith("-"):
                operands.append(str(argument))
            else:
                options += _option_words(parameter.opts[0], argument)
        if self.takes_policy and policy is not None:
            options.append(f"--policy={policy}")
        # after `--` an argument that begins with a dash is no option
        return [*self.tool.command.split(), *self.tool.fixed, *options, *(["--", *operands] if operands else [])]


def tool_commands(root: Any) -> dict[str, ToolCommand]:
    """Return every tool by its name; `root` is the group of all commands."""
    return {tool.name: ToolCommand(tool, root) for tool in VERB_TOOLS}


def _option_words(flag: str, argument: Any) -> Iterator[str]:
    if argument is True:
        yield flag
    elif isinstance(argument, list):
        yield from (f"{flag}={part}" for part in argument)
    elif argument is not False:
        yield f"{flag}={argument}"


def _argument_schema(parameter: Any) -> dict[str, Any]:
    """Return the JSON Schema of an option's value."""
    descriptor = parameter.type_descriptor
    kind, bounds = descriptor.annotation, descriptor.parameter_info
    schema: dict[str, Any]
    if get_origin(kind) is list:
        schema = {"type": "array", "items": {"type": "string"}}
    elif issubclass(kind, Enum):
        schema = {"type": "string", "enum": [member.value for member in kind]}
    else:
        schema = {"type": _JSON_TYPES[kind]}
    if bounds.min is not None:
        schema["minimum"] = bounds.min
    if bounds.max is not None:
        schema["maximum"] = bounds.max
    return schema | {"description": parameter.help or ""}


def connection_words(connection: Mapping[str, Any]) -> Sequence[str]:
    """Return options of `gpuops` itself for these settings by field name; False and None are left out."""
    return [word for name, setting in connection.items() if setting for word in _option_words(_flag(name), setting)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
