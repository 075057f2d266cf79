"""`gpuops explain`: each key of each file is explained, and a wrong one is answered with the closest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import Result

from gpuops.cli.first_steps.schema import INPUTS, input_schema
from gpuops.config.explanation import Explanation, explain
from gpuops.files.file import templates

Gpuops = Callable[..., Result]


def _explanations(name: str, words: tuple[str, ...] = (), depth: int = 0) -> Iterator[Explanation]:
    """Each key of a file, down to five levels."""
    template = templates()[INPUTS[name].template].read_text("utf-8") if INPUTS[name].template else ""
    explanation = explain(name, words, input_schema(name), template)
    yield explanation
    if depth < 5:
        for key in explanation.keys:
            yield from _explanations(name, tuple(key.path.split(".")[1:]), depth + 1)


@pytest.mark.parametrize("name", sorted(set(INPUTS) - {"scenario"}))
def test_each_key_of_each_file_has_a_type(name: str) -> None:
    explanations = list(_explanations(name))
    assert len(explanations) > 3
    assert [explanation.path for explanation in explanations if not explanation.type] == []


@pytest.mark.parametrize("name", [name for name, file in INPUTS.items() if file.template])
def test_an_example_begins_with_its_key(name: str) -> None:
    examples = {key.path.rpartition(".")[2]: key.example for key in _explanations(name) if key.example}
    assert examples
    for key, example in examples.items():
        assert example.splitlines()[0].lstrip("# -").startswith(key), example


def test_a_key_is_explained_with_its_keys_and_an_example(gpuops: Gpuops) -> None:
    page = gpuops("explain", "policy.pools.idle")
    assert (page.exit_code, page.stderr) == (0, "")
    assert page.stdout.startswith("policy.pools.idle\n  Idle is: no console connection")
    assert "  required  yes\n" in page.stdout
    assert "\n  for_s " in page.stdout and "\n  cpu_below_mhz " in page.stdout
    assert "example\n  idle:\n    cpu_below_mhz: 500\n" in page.stdout


def test_programs_get_a_document(gpuops: Gpuops) -> None:
    document = json.loads(gpuops("explain", "policy.mode", "--output", "json").stdout)
    assert document["allowed"] == ["suspend-desktops", "spare-capacity"]
    assert (document["default"], document["required"], document["keys"]) == ("suspend-desktops", False, {})
    assert document["example"] == "mode: suspend-desktops"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("config.toml.targets.prod.host", "config.targets.prod.host"),
        ("config.targets.host", "config.targets.NAME.host"),
        ("pools.servers", "pool.servers"),
        ("roles", "role-file"),
        ("changes", "what-if-changes"),
        ("policy.pools[].idle", "policy.pools.idle"),
        ("policy.pools.0.idle", "policy.pools.idle"),
        ("requests.requests.numa", "requests.requests.numa"),
        ("clusters.rdma.kind", "cluster.rdma.kind"),
    ],
)
def test_a_key_may_be_written_as_people_write_it(key: str, path: str, gpuops: Gpuops) -> None:
    assert gpuops("explain", key).stdout.splitlines()[0] == path


def test_the_text_below_a_field_is_its_description_in_the_schema() -> None:
    target: Any = input_schema("config")["$defs"]["NamedTarget"]["properties"]
    assert target["thumbprint"]["description"].startswith("SHA-256 of its certificate")
