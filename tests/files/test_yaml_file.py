"""What the reader of all YAML files that people write refuses, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.errors import PolicyError
from gpuops.files.yaml_file import parse_yaml

TAGGED = [
    "!!bool x",
    "!!timestamp x",
    '!!int ""',
    '!!float ""',
    "!!null x",
    "!!binary x",
    "!!str x",
    "!own x",
    "! x",
    "!<tag:yaml.org,2002:int> 5",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!map {a: 1}",
    "!!seq [a]",
    "&anchor !!int 5",
    "!!merge <<",
    "!!value =",
    "[a, !!bool x]",
    "{!!int 1: 2}",
]


@pytest.mark.quick_cases(13)
@pytest.mark.parametrize("value", TAGGED)
@pytest.mark.parametrize("merges", [False, True])
def test_a_tag_is_refused_with_its_line(value: str, merges: bool) -> None:
    with pytest.raises(PolicyError, match=r"^x\.yaml: line 2, column \d+: the tag '.+': gpuops accepts no tags$"):
        parse_yaml(f"version: 1\nname: {value}\n", "x.yaml", merges=merges)


@pytest.mark.parametrize("value", [r'"\ud800"', r'"\udfff\ud800"', r'{"\udc00": 1}', r'["\ud83d\ude00"]'])
def test_half_of_a_surrogate_pair_is_refused_with_its_line(value: str) -> None:
    with pytest.raises(PolicyError, match=r"^x\.yaml: line 2, column \d+: it holds half of a surrogate pair"):
        parse_yaml(f"version: 1\nname: {value}\n", "x.yaml")


def test_other_texts_are_read() -> None:
    text = 'a: "!!bool x"\nb: \'! x\'\nc: x!!y\nd: "\\U0001F600 \\u00e9"\n'
    assert parse_yaml(text, "x.yaml") == {"a": "!!bool x", "b": "! x", "c": "x!!y", "d": "\U0001f600 é"}


@pytest.mark.parametrize(
    "arguments", [["rotate", "plan", "--vcenter", "sim:lab", "--policy"], ["sim", "serve", "--scenario"]]
)
def test_a_command_ends_as_by_any_wrong_file(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text("name: !!bool x\n", encoding="utf-8")
    completed = CliRunner().invoke(app, [*arguments, str(path)])
    assert (completed.exit_code, completed.stdout) == (2, "")
    assert f"error: {path}: line 1, column 7: the tag 'tag:yaml.org,2002:bool'" in completed.stderr
