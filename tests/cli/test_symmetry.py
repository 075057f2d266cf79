"""The command line is the library with dashes: learn one, know both."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
import typer

from gpuops.cli.app import app
from gpuops.console.options import CommonOptions, HostShellOptions, RunOptions
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.command_line import Option
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.graphics.mig_mode import SetMig
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.moving.defrag import Defrag
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach

SHARED = {field.name for group in (CommonOptions, RunOptions, HostShellOptions) for field in fields(group)} | {
    "inventory_file"
}


def parameters(command: str) -> dict[str, Any]:
    """The options of a command, `mig set on`, by the names of their parameters."""
    click_command: Any = typer.main.get_command(app)
    for word in command.split():
        click_command = click_command.commands[word]
    return {parameter.name: parameter for parameter in click_command.params}


def options(name: str) -> dict[str, Any]:
    return {param: parameter for param, parameter in parameters(name).items() if param not in SHARED}


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_fields_of_the_request_are_options_of_the_command(name: str, request_type: type) -> None:
    assert list(options(name)) == [field.name for field in fields(request_type)]


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_defaults_are_the_same(name: str, request_type: type) -> None:
    defaults = {field.name: field.default or None for field in fields(request_type) if field.name != "vm"}
    assert {key: option.default or None for key, option in options(name).items() if key != "vm"} == defaults


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_an_option_is_its_field_with_dashes(name: str, request_type: type) -> None:
    for field in fields(request_type):
        assert f"--{field.name.replace('_', '-')}" in options(name)[field.name].opts


@pytest.mark.parametrize(
    ("command", "request_type", "fixed"),
    [
        ("capacity", CapacityRequest, set()),
        ("defrag", Defrag, set()),
        ("place", Place, {"workloads"}),
        ("host scheduler set", SetScheduler, set()),
        ("host mode set", SetMode, set()),
        ("host passthrough on", SetPassthrough, {"on"}),
        ("host passthrough off", SetPassthrough, {"on", "label"}),
        ("host mig on", SetMig, {"on"}),
        ("host mig off", SetMig, {"on"}),
        ("host scheduler show", Scope, {"tag"}),
        ("doctor", Scope, {"tag"}),
        ("readiness", Scope, {"tag"}),
    ],
)
def test_a_command_takes_its_options_from_the_fields_of_its_request(
    command: str, request_type: type, fixed: set[str]
) -> None:
    params = parameters(command)
    for field in fields(request_type):
        if field.name in fixed:
            assert field.name not in params
            continue
        option, hint = params[field.name], get_type_hints(request_type, include_extras=True)[field.name]
        (annotation,) = (extra for extra in get_args(hint)[1:] if isinstance(extra, Option))
        assert (option.help, option.metavar if annotation.metavar else None) == (annotation.help, annotation.metavar)
        assert f"--{field.name.replace('_', '-')}" in option.opts
        assert option.required is (field.default is MISSING)


def test_help_of_a_command_begins_with_its_request() -> None:
    assert list(parameters("host mig on"))[:4] == ["gpu", "host", "cluster", "dry_run"]
    assert list(parameters("host passthrough off"))[:5] == ["gpu", "host", "cluster", "device", "dry_run"]
