"""Reads YAML files that people write into plain values: small, without tags, duplicate keys or surprises.

Why not `yaml.safe_load`: it keeps the last of two equal keys, expands aliases without end, and reads YAML 1.1, where
`22:00` is 1320, `010` is 8 and `no` is false. Here a plain scalar is true, false, null, a decimal number or text. A tag
(`!!bool x`) is refused: PyYAML may make something other than a plain value of it, or raise a foreign exception.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from gpuops.errors import PolicyError
from gpuops.files import file

if TYPE_CHECKING:
    import msgspec

MAX_ALIASES: Final = 100
MAX_DEPTH: Final = 40
MAX_MERGED: Final = 1000
_CORRECT: Final = "correct the file; write text that contains : or # in quotes"


class _PlainLoader(yaml.SafeLoader):
    """Loads YAML as the module's docstring says: plain values, no tags, no duplicate keys, with limits."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]  # not inherited: see the module's docstring

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.aliases = 0
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse tags, deep nesting, and aliases by which a small file becomes a huge value."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise yaml.constructor.ConstructorError(problem=f"more than {MAX_ALIASES} aliases")
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if (tag := getattr(event, "tag", None)) is not None:
            problem = f"the tag {tag!r}: gpuops accepts no tags"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.constructor.ConstructorError(problem=f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_scalar(self, node: yaml.Node) -> str:
        text: str = super().construct_scalar(node)  # type: ignore[arg-type]
        if node.tag.endswith((":int", ":float")) and len(text) > file.MOST_DIGITS:
            problem = f"a number of {len(text)} digits"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        if file.SURROGATE.search(text):
            raise yaml.constructor.ConstructorError(problem=file.NO_TEXT, problem_mark=node.start_mark)
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(problem="a key is not text", problem_mark=key.start_mark)
            if key.value in keys:
                problem = f"the key {key.value!r} is set twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


# PyYAML only matches the beginning of a scalar, so each pattern ends with $.
for _tag, _pattern, _firsts in (
    ("bool", r"(true|false)$", "tf"),
    ("null", r"(null|~|)$", "n~"),
    ("int", r"-?(0|[1-9][0-9]*)$", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]*)\.[0-9]+$", "-0123456789"),
):
    _first_characters = [*_firsts, ""] if _tag == "null" else list(_firsts)
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first_characters)


class _MergingLoader(_PlainLoader):
    """Also accepts merge keys (`<<`)."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_MERGED:  # a chain of merges could double the number of keys at each level
            problem = f"merged into more than {MAX_MERGED} keys"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


_MergingLoader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])


def read_text(path: Path) -> str:
    """Return the file's text. Raises PolicyError if it cannot be read, is not UTF-8 or larger than a megabyte."""
    return file.read_text(path, error=PolicyError)


def parse_yaml(text: str, name: str, *, merges: bool = False) -> object:
    """Return the plain value of a YAML text. `merges`: accept merge keys (`<<`).

    Raises PolicyError with the file, the place in it and the reason.
    """
    try:
        return yaml.load(text, Loader=_MergingLoader if merges else _PlainLoader)  # noqa: S506  # SafeLoaders, narrowed
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise PolicyError(f"{name}:{place} {' '.join(str(error.problem).split())}", hint=_CORRECT) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PolicyError(f"{name}: is not YAML: {' '.join(str(error).split())[:200]}", hint=_CORRECT) from error


def describe_mismatch(error: msgspec.ValidationError, within: str = "") -> str:
    """Return the place of a mistake that msgspec found in a file, and what is wrong there.

    `within`: the place of the checked part in the file.

    >>> describe_mismatch(msgspec.ValidationError("Expected `int` >= 1 - at `$.vms[3].cpus`"))
    'vms.3.cpus: expected int >= 1'
    """
    in_yaml = str(error).replace("`object`", "a mapping").replace("`array`", "a list").replace("`null`", "nothing")
    problem, _, path = in_yaml.replace("`", "").partition(" - at ")
    problem = problem.removeprefix("Object ")
    place = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", within + path.replace("$", "")).strip(".")
    return ": ".join(filter(None, (place, problem[:1].lower() + problem[1:])))
