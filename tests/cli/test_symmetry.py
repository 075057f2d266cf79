"""The command line is the library with dashes: learn one, know both."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import typer

from gpuops.cli.app import app
from gpuops.cli.options import Acting, Common
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach

SHARED = {field.name for group in (Common, Acting) for field in fields(group)} | {"saved"}


def options(name: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in group.commands[name].params if parameter.name not in SHARED}


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_fields_of_the_request_are_options_of_the_command(name: str, request_type: type) -> None:
    assert list(options(name)) == [field.name for field in fields(request_type)]


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_defaults_are_the_same(name: str, request_type: type) -> None:
    wanted = {field.name: field.default or None for field in fields(request_type) if field.name != "vm"}
    assert {key: option.default or None for key, option in options(name).items() if key != "vm"} == wanted


@pytest.mark.parametrize(("name", "request_type"), [("attach", Attach), ("detach", Detach)])
def test_an_option_is_its_field_with_dashes(name: str, request_type: type) -> None:
    for field in fields(request_type):
        assert f"--{field.name.replace('_', '-')}" in options(name)[field.name].opts
