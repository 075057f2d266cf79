"""The table of the extras, the optional capabilities below `gpuops/extras`, with which the core finds them.

The core does not import extras. It looks up names in this table, and imports a module of an extra when it is used. An
extra whose folder was removed adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from gpuops.errors import UsageError

PACKAGE: Final = "gpuops.extras"


class InputFile(NamedTuple):
    """A file that people write."""

    title: str
    checked_by: str
    """MODULE:CLASS, a `Section`; that of a scenario is another msgspec.Struct."""
    template: str = ""
    """The template in which an example of each key stands; empty = no template."""


@dataclass(frozen=True, slots=True)
class Extra:
    """What one folder of `gpuops/extras` adds. Modules are named below the folder."""

    commands: Mapping[str, str] = field(default_factory=dict)
    """The module of each command of the command line."""
    documents: tuple[str, ...] = ()
    """Modules that define documents of `--output json`."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """The module of each Ansible module's task."""
    files: Mapping[str, InputFile] = field(default_factory=dict)
    """The files that people write, by their names in `gpuops schema`."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """The command of each kind of run that its requests have in journals."""
    night: str = ""
    """The module and name of its `NightExtension`; empty = it adds nothing to nights."""


EXTRAS: Final[Mapping[str, Extra]] = {
    "observe": Extra(commands={"observe": "cli"}, documents=("view",), night="desktop_demand.MEASURED_USE"),
    "notify": Extra(commands={"notify": "cli"}, documents=("view",)),
    "sizing": Extra(
        commands={"measure": "measure_cli", "size": "cli", "what-if": "what_if.cli"},
        documents=("measured_view", "view", "what_if.view"),
        tasks={"gpu_sizing_info": "tasks"},
    ),
    "diagnosis": Extra(
        commands={"diagnose": "cli"},
        documents=("view",),
        tasks={"gpu_diagnosis_info": "tasks"},
        files={"case": InputFile("A line of a file of `gpuops diagnose --cases`", "case_file:CaseLine")},
    ),
    "clusters": Extra(
        commands={"cluster": "cli"},
        documents=("view",),
        tasks={"gpu_cluster": "tasks", "gpu_cluster_info": "tasks"},
        files={"cluster": InputFile("A cluster of `gpuops cluster`", "cluster_file:ClusterFile", "cluster.yaml")},
    ),
    "jobs": Extra(
        commands={"job": "cli"},
        documents=("view", "submitted_view"),
        tasks={"gpu_job": "tasks", "gpu_job_info": "tasks"},
        files={"jobs": InputFile("Jobs of `gpuops job`", "jobs_file:JobsFile", "jobs.yaml")},
        night="nightly.JOBS_AT_NIGHT",
    ),
    "lending": Extra(
        commands={"pool": "cli"},
        documents=("view",),
        files={
            "pool": InputFile("A pool of `gpuops pool`", "lease_book:PoolFile", "pool.yaml"),
            "remote-gpu": InputFile(
                "A program that lends GPUs over the network", "pool_file:RemoteProgram", "remote-gpu/lupine.yaml"
            ),
        },
    ),
    "fleet": Extra(commands={"runner": "cli"}, documents=("cli",)),
    "web": Extra(
        commands={"metrics": "metrics_cli", "report": "report_cli", "serve": "report_cli", "top": "top_cli"},
        documents=("metrics_view", "page.fleet_report", "top_table"),
    ),
    "bundle": Extra(commands={"bundle": "cli"}, documents=("archive",)),
    "declare": Extra(
        commands={"diff": "cli", "apply": "cli", "assert": "cli", "drift": "cli", "export": "cli"},
        documents=("view",),
        tasks={"gpu_site": "tasks"},
        files={"site": InputFile("What hosts and VMs should be (`gpuops apply`)", "entries:SiteFile", "site.yaml")},
        runs={"sitehosts": "apply", "sitevms": "apply"},
    ),
    "mcp": Extra(commands={"mcp": "cli"}),
}
"""All extras, in the order in which they may import each other: an extra imports only those before it."""


def is_installed(extra: str) -> bool:
    """Return whether the folder of this extra is there."""
    return find_spec(PACKAGE) is not None and find_spec(f"{PACKAGE}.{extra}") is not None


def installed_extras() -> Iterator[str]:
    """Yield the names of the extras whose folder is there."""
    return filter(is_installed, EXTRAS)


def missing_commands() -> frozenset[str]:
    """Return the commands of extras whose folder is not there."""
    return frozenset(command for name, extra in EXTRAS.items() if not is_installed(name) for command in extra.commands)


def input_files() -> dict[str, InputFile]:
    """Return the files that the installed extras read, by their names in `gpuops schema`."""
    return {
        name: file._replace(checked_by=f"{PACKAGE}.{extra}.{file.checked_by}")
        for extra in installed_extras()
        for name, file in EXTRAS[extra].files.items()
    }


def command_module(command: str) -> str | None:
    """Return the module of an extra's command; None for a command of the core. Raises UsageError as `load`."""
    return _module_of({name: extra.commands for name, extra in EXTRAS.items()}, command)


def task_module(task: str) -> str | None:
    """Return the module of an Ansible module's task; None for one of the core. Raises UsageError as `load`."""
    return _module_of({name: extra.tasks for name, extra in EXTRAS.items()}, task)


def _module_of(tables: Mapping[str, Mapping[str, str]], name: str) -> str | None:
    """Return the module of that name in the table of an extra; None if no extra has it. Raises UsageError as `load`."""
    extra = next((extra for extra, modules in tables.items() if name in modules), None)
    if extra is None:
        return None
    _check_installed(extra)
    return f"{PACKAGE}.{extra}.{tables[extra][name]}"


def _check_installed(extra: str) -> None:
    if not is_installed(extra):
        raise UsageError(
            f"this installation of gpuops does not contain {extra}",
            hint=f"install gpuops with the folder gpuops/extras/{extra}",
        )


def import_documents() -> None:
    """Import every module of an extra that defines documents: a document registers itself."""
    for name in installed_extras():
        for module in EXTRAS[name].documents:
            import_module(f"{PACKAGE}.{name}.{module}")


def load(path: str) -> Any:
    """Import a module of an extra and return its object of this name: `load("gpuops.extras.fleet.sites.ask_sites")`.

    Raises UsageError if this installation does not have the extra.
    """
    _check_installed(path.removeprefix(f"{PACKAGE}.").partition(".")[0])
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def run_commands() -> dict[str, str]:
    """Return the command of each kind of run of extras, also of those that are not installed: journals keep runs."""
    return {kind: command for extra in EXTRAS.values() for kind, command in extra.runs.items()}


def night_extensions() -> tuple[Any, ...]:
    """Return what installed extras add to nights: one `gpuops.execute.rotation.night_extension.NightExtension` each."""
    return tuple(load(f"{PACKAGE}.{name}.{EXTRAS[name].night}") for name in installed_extras() if EXTRAS[name].night)
