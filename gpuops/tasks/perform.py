"""Runs the task of an Ansible module, and makes its result: changed, diff, every reason, and the plan as a document.

The planner and the errors name options as the command line spells them (`--power cycle`). A user of a module does not
type these, so `in_words_of` translates each text that a module returns: `power: cycle`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any, Final, TypeVar, cast

from gpuops.api import catalog_of
from gpuops.extensions import task_module
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.placement.project import project
from gpuops.report.document import Document, PrintedDocument, as_values
from gpuops.report.vms.vm_view import differences
from gpuops.tasks.task_connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site, policy_of, vm_of

REFUSED: Final = "refused, nothing changed"
PARTLY: Final = "partly done"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task, or its error."""

    result: Document
    """The keys that the module returns, in JSON's own types: documents among them become dicts."""
    exit_code: int = 0
    """The exit code that the command would have; anything but 0 fails the task."""
    message: str = ""
    """The error of a failed task, in one line."""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", {key: as_values(field) for key, field in self.result.items()})


def task_result(
    fields: Document, exit_code: int, reasons: list[str], warnings: Iterable[str], headline: str, *message_reasons: str
) -> TaskResult:
    """Return the result with every reason; the error of a failed task joins them: `refused, nothing changed: A; B`.

    `message_reasons`: the reasons in that error, if they differ from `reasons`.
    """
    joined = "; ".join(message_reasons or reasons)
    message = f"{headline}: {joined}" if joined else headline
    return TaskResult({**fields, "reasons": reasons}, exit_code, message if exit_code else "", tuple(warnings))


def reading(read: Callable[..., Document]) -> Callable[..., TaskResult]:
    """Turn `read(site, **options)`, which returns a document, into a task that returns this document as its result.

    The task changes nothing. It reads the file in the option `policy`, and raises PolicyError for it before the login.
    """

    @wraps(read)
    def task(connection: ConnectionArguments, *, shell: HostShellArguments = NO_SHELL, **options: Any) -> TaskResult:
        if "policy" in options:
            options["policy"] = policy_of(options["policy"])
        site, warnings = open_site(connection, shell=shell)
        with site:
            document = read(site, **options)
        return unchanged_result(document, warnings)

    return task


def unchanged_result(document: Document, warnings: Iterable[str] = ()) -> TaskResult:
    return TaskResult({"changed": False, **document}, warnings=tuple(warnings))


def difference(name: str, before: Document | str, after: Document | str) -> Document:
    """Return the difference of one object, as Ansible shows it with --diff."""
    return {"before_header": name, "after_header": name, "before": before, "after": after}


NOT_DONE: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})


def inventory_after(report: Report) -> Inventory:
    """Return the inventory after the change: as read back or, in check mode, as predicted."""
    if report.applied:
        return report.after or report.before
    world, catalog = report.before, catalog_of(report.before)
    for step in report.plan.steps if report.plan.feasible else ():
        world = project(step, world, catalog) if step.vm in world.vms else world
    return world


def result_of(report: Report, document: PrintedDocument, after: Inventory, warnings: list[str]) -> TaskResult:
    """Return the result of a change of VMs; `document`: the plan, as the command line prints it."""
    fields: Document = {
        "changed": report.changed,
        "diff": differences([step.vm for step in report.plan.steps], report.before, after),
        "because": list(report.plan.because),
        "plan": document,
    }
    reasons = reasons_of(report, *(unmet_row.line for unmet_row in report.plan.unmet))
    headline = PARTLY if report.plan.feasible else REFUSED  # printed only if the task fails
    headline = "done without its journal" if report.journal_lost else headline
    return task_result(fields, report.exit_code, reasons, (*warnings, *report.plan.warnings), headline)


def reasons_of(report: Report | Report[HostStep] | ChangeReport, *unmet: str) -> list[str]:
    """Return every reason why something was not done, each with its next step."""
    failed = [outcome.reason for outcome in report.outcomes if outcome.verdict in NOT_DONE and outcome.reason]
    return [*(rejection.line for rejection in report.plan.rejections), *unmet, *failed]


_MODULES: Final = {
    "changes": (
        *("host_gpu_scheduler", "host_graphics_mode", "host_passthrough"),
        *("vm_clone", "vm_gpu", "vm_gpus"),
    ),
    "reads": (
        *("gpu_capacity_info", "gpu_placement", "gpu_readiness_info"),
        *("guest_gpu_info", "host_gpu_info", "vm_gpu_info"),
    ),
    "night_tasks": ("rotation", "rotation_info", "rotation_timers_info"),
    "simulator": ("sim_vcenter",),
}
"""The Ansible modules whose tasks are in each file of `gpuops.tasks`; those of extras are in `gpuops.extensions`."""

Group = TypeVar("Group", ConnectionArguments, HostShellArguments)


def task_of(module: str) -> Callable[..., TaskResult]:
    """Return the function of a module. Only its file is loaded."""
    file = task_module(module) or "gpuops.tasks." + next(file for file, names in _MODULES.items() if module in names)
    return cast("Callable[..., TaskResult]", getattr(import_module(file), module))


def perform(module: str, arguments: Mapping[str, Any], *, apply: bool) -> TaskResult:
    """Run the task of a module with all of its arguments; `apply` is False in check mode. Raises GpuopsError."""
    task, options = task_of(module), dict(arguments)
    connection = [_take_group(ConnectionArguments, options)] if "hostname" in options else []
    if "host_shell" in options:
        options["shell"] = _take_group(HostShellArguments, options)
    if "moid" in options:
        options["vm"] = vm_of(options)
    if "apply" in signature(task).parameters:
        options["apply"] = apply
    return task(*connection, **options)


def _take_group(group: type[Group], options: dict[str, Any]) -> Group:
    """Remove the arguments of the connection or the host shell from `options`, and return them as one object."""
    return group(**{field.name: options.pop(field.name) for field in fields(group)})


Arguments = Mapping[str, Mapping[str, Any]]
"""An `argument_spec`."""

_VALUE: Final = r"""(?:'[^']*'|"[^"]*"|(?!--)[^\s;,()'"][^\s;,()]*(?<![.:]))"""
_OPTION: Final = re.compile(
    rf"(?<![\w-])--(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])"
    rf"(?:(?P<gap>[ =])(?P<value>{_VALUE})(?P<more>(?:[ ]--(?P=name)[ =]{_VALUE})*))?"
)
_REPEATED_OPTION: Final = re.compile(rf" --[a-z0-9-]+[ =]({_VALUE})")
_COMMAND: Final = re.compile(r"((?<![\w./@-])gpuops [a-z](?:(?!: )[^;,()\n])*)")
"""A command to type, which is not translated."""
_PROSE: Final = re.compile(r"[a-z-]+")

_TEXT_KEYS: Final = frozenset({"because", "reasons", "afterwards", "hint"})
"""The keys of a result whose texts are translated."""


def in_words_of(arguments: Arguments, text: str) -> str:
    """Return the text in which each option that the module has as an argument is written as an argument.

    Other options, and commands to type, stay as they are.

    >>> module = {"power": {"choices": ["cycle", "off"]}, "gpu": {"type": "list"}, "all": {"type": "bool"}}
    >>> in_words_of(module, "it runs; --power cycle restarts it")
    'it runs; power: cycle restarts it'
    >>> in_words_of(module, "--all takes every device, --gpu names one, --force is of the command line")
    'all: true takes every device, gpu names one, --force is of the command line'
    >>> in_words_of(module, "set the others alone: --gpu 0000:3b:00.0 --gpu 0000:af:00.0")
    'set the others alone: gpu: ["0000:3b:00.0", "0000:af:00.0"]'
    >>> in_words_of(module, "gpuops host passthrough off --gpu 0000:3b:00.0 gives it back")
    'gpuops host passthrough off --gpu 0000:3b:00.0 gives it back'
    """
    arguments_by_name = _with_suboptions(arguments)
    parts = _COMMAND.split(text)  # text and commands in turn: those with an odd index are commands
    return "".join(part if index % 2 else _translate(arguments_by_name, part) for index, part in enumerate(parts))


def result_in_words_of(arguments: Arguments, task_result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a module with its reasons in the module's words; documents of commands stay unchanged."""
    return {key: _part_in_words(arguments, key, part) for key, part in task_result.items()}


def _part_in_words(arguments: Arguments, key: str, part: Any) -> Any:
    if key in _TEXT_KEYS:
        return [in_words_of(arguments, reason) for reason in part] if isinstance(part, list) else part
    if key == "vms" and isinstance(part, list):
        # in the result of `vm_gpus`, each VM has its own reasons
        return [result_in_words_of(arguments, vm) if isinstance(vm, dict) else vm for vm in part]
    return part


def _with_suboptions(arguments: Arguments) -> dict[str, Mapping[str, Any]]:
    """Return the arguments and their suboptions, by name; if both have a name, the outer argument counts."""
    inner: dict[str, Mapping[str, Any]] = {}
    for argument in arguments.values():
        inner |= _with_suboptions(argument.get("options") or {})
    return {**inner, **arguments}


def _translate(arguments: Arguments, text: str) -> str:
    """Return the text with its options written as arguments of a module: `--gpu A` becomes `gpu: A`.

    `text` has no commands; the caller has translated those.
    """

    def replace_option(match: re.Match[str]) -> str:
        name = match["name"].replace("-", "_")
        argument = arguments.get(name)
        if argument is None:
            return match[0]
        # what follows the option may be its value, or only the next word of the sentence
        following = f"{match['gap']}{match['value']}{_translate(arguments, match['more'])}" if match["value"] else ""
        if argument.get("type") == "bool":
            return f"{name}: true{following}"
        if not match["value"] or not _is_value(match["value"], argument):
            return f"{name}{following}"
        # the same option several times is one list: `--gpu A --gpu B` becomes `gpu: [A, B]`
        words = [_quote(word) for word in (match["value"], *_REPEATED_OPTION.findall(match["more"]))]
        return f"{name}: {words[0]}" if len(words) == 1 else f"{name}: [{', '.join(words)}]"

    return _OPTION.sub(replace_option, text)


def _is_value(word: str, argument: Mapping[str, Any]) -> bool:
    """Return whether the word after an option is its value; in `--gpu needs --host` it only continues the sentence."""
    choices: Collection[str] | None = argument.get("choices")
    if choices is not None:
        return word in choices
    return word.isdigit() if argument.get("type") == "int" else _PROSE.fullmatch(word) is None


def _quote(word: str) -> str:
    """Return the word, in quotes if YAML would read it as something else: `0000:18:00.0` as a number."""
    return f'"{word}"' if ":" in word and word[0] not in "'\"" else word
