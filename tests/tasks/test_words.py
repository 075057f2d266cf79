"""Options of the command line as arguments of a module."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from gpuops.tasks import perform
from gpuops.tasks.perform import in_words_of, result_in_words_of

MODULE: dict[str, dict[str, Any]] = {
    "power": {"type": "str", "choices": ["refuse", "cycle", "off", "on"]},
    "driver_branch": {"type": "str"},
    "averaging": {"type": "int"},
    "gpu": {"type": "list", "elements": "str"},
    "all": {"type": "bool"},
    "vms": {"type": "list", "elements": "dict", "options": {"keep_free": {"type": "list"}, "all": {"type": "str"}}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("--power cycle restarts it, --power off leaves it", "power: cycle restarts it, power: off leaves it"),
        ("say --power=cycle.", "say power: cycle."),
        ("--power says what may be done", "power says what may be done"),
        ("leave --driver-branch out", "leave driver_branch out"),
        ("--driver-branch R550 states it", "driver_branch: R550 states it"),
        ("--driver-branch: 'new' is none", "driver_branch: 'new' is none"),
        ("--driver-branch 5x: not one", "driver_branch: 5x: not one"),
        ("--averaging 33 or --averaging alone", "averaging: 33 or averaging alone"),
        ("attach it whole: --gpu", "attach it whole: gpu"),
        ("--gpu 0000:18:00.0", 'gpu: "0000:18:00.0"'),
        ("--gpu '0000:18:00.0'", "gpu: '0000:18:00.0'"),
        ("--gpu 0000:18:00.0 --gpu 0000:3b:00.0 alone", 'gpu: ["0000:18:00.0", "0000:3b:00.0"] alone'),
        ("--gpu --all", "gpu all: true"),
        ("--all takes every device", "all: true takes every device"),
        ("--keep-free a40-8q=4 keeps them", "keep_free: a40-8q=4 keeps them"),
        ("--reboot rolling and --powers, -power and x--power stay", None),
        ("gpuops attach --power cycle, or --power off", "gpuops attach --power cycle, or power: off"),
        ("gpuops help attach: --power off", "gpuops help attach: power: off"),
        ("of gpuops: --power off; start one: gpuops x --gpu 1", "of gpuops: power: off; start one: gpuops x --gpu 1"),
    ],
)
def test_only_what_the_module_has_is_an_argument(text: str, expected: str | None) -> None:
    assert in_words_of(MODULE, text) == (text if expected is None else expected)


def test_the_examples_of_its_docstring_are_true() -> None:
    assert doctest.testmod(perform) == (0, 5)


def test_each_vm_of_a_result_has_its_reasons_in_these_words() -> None:
    result = {"changed": False, "vms": [{"reasons": ["--power on"], "vm": {"name": "--power on"}}], "because": []}
    answer = result_in_words_of(MODULE, result)
    assert answer == {
        "changed": False,
        "vms": [{"reasons": ["power: on"], "vm": {"name": "--power on"}}],
        "because": [],
    }
