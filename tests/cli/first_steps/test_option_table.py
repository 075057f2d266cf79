"""A name of an option means one thing, whichever command has it (`gpuops help options`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import Result

from gpuops.cli.app import app
from gpuops.cli.first_steps.help import SHARED, option_table, options_of

FORMATS = {"<text|json|yaml>", None}
"""What `--output` takes; None = csv too, where there is a table."""


@pytest.fixture(scope="module")
def options() -> dict[str, list[Any]]:
    by_name: defaultdict[str, list[Any]] = defaultdict(list)
    for _, name, option in options_of(get_command(app)):
        by_name[name].append(option)
    return dict(by_name)


def test_an_option_whose_help_differs_between_commands_has_one_meaning(options: dict[str, list[Any]]) -> None:
    differing = {name for name, same_name in options.items() if len({option.help for option in same_name}) > 1}
    assert differing == set(SHARED), "write its meaning into SHARED, or rename it where it means something else"


def test_an_option_takes_one_kind_of_value(options: dict[str, list[Any]]) -> None:
    values = {name: {option.metavar for option in same_name} for name, same_name in options.items()}
    assert values.pop("--output") == FORMATS
    assert {name: metavars for name, metavars in values.items() if len(metavars) > 1} == {}
    flags = {name: {option.is_flag for option in same_name} for name, same_name in options.items()}
    assert {name: is_flag for name, is_flag in flags.items() if len(is_flag) > 1} == {}


def test_no_two_names_differ_by_a_hyphen_alone(options: dict[str, list[Any]]) -> None:
    assert len({name.replace("-", "").lower() for name in options}) == len(options)


def test_each_option_has_a_row(gpuops: Callable[..., Result], options: dict[str, list[Any]]) -> None:
    page = gpuops("help", "options")
    assert (page.exit_code, page.stderr) == (0, "")
    assert page.stdout == option_table(get_command(app))
    assert [line.split("`")[1] for line in page.stdout.splitlines() if line.startswith("| `")] == sorted(options)
