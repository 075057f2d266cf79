"""Finds every kind of document that gpuops prints in its sources.

It is registered by `printed` above a class, or is a dict with a schema_version and a kind.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[2] / "gpuops"

Function = ast.FunctionDef | ast.Module


def printed_kinds() -> set[str]:
    """The kinds of all documents that `report` and `cli` make."""
    return registered_kinds() | dict_kinds()


def dict_kinds() -> set[str]:
    return {kind for tree in _trees() for within, made in _documents(tree) for kind in _values(made, within)}


def registered_kinds() -> set[str]:
    nodes = (node for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    calls = [call for node in nodes for call in node.decorator_list if isinstance(call, ast.Call)]
    return {ast.literal_eval(call.args[0]) for call in calls if _last(call.func) == "printed"}


@cache
def _trees() -> list[ast.Module]:
    paths = [path for folder in ("report", "cli") for path in sorted((SOURCES / folder).rglob("*.py"))]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def _documents(tree: ast.Module) -> Iterator[tuple[Function, ast.expr]]:
    """The `kind` of each document, with the function that it is made in."""
    for within, node in _nodes(tree):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            keys = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
            if {"schema_version", "kind"} <= keys.keys():
                yield within, keys["kind"]


def _nodes(tree: ast.Module) -> Iterator[tuple[Function, ast.AST]]:
    """Every node with the outermost function that it is in."""
    for top in tree.body:
        within = top if isinstance(top, ast.FunctionDef) else tree
        for node in ast.walk(top):
            yield within, node


def _values(node: ast.expr, within: Function) -> set[str]:
    """What the expression may be, in every call of the function that it is in."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=one, orelse=other):
            return _values(one, within) | _values(other, within)
        case ast.JoinedStr(values=parts):
            return {"".join(each) for each in product(*(sorted(_values(part, within)) for part in parts))}
        case ast.FormattedValue(value=value):
            return _values(value, within)
        case ast.Name(id=name) if isinstance(within, ast.FunctionDef):
            return _values_of_name(name, within)
        case _:
            raise AssertionError(f"line {node.lineno}: which kind this is cannot be told: {ast.unparse(node)}")


def _last(called: ast.expr) -> str:
    """The name of a function, without those of whom it belongs to."""
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _values_of_name(name: str, within: ast.FunctionDef) -> set[str]:
    """A local's value, or what callers pass for a parameter."""
    for node in ast.walk(within):
        if isinstance(node, ast.Assign) and [name] == [ast.unparse(target) for target in node.targets]:
            return _values(node.value, within)
    names = [each.arg for each in (*within.args.posonlyargs, *within.args.args)]
    place = names.index(name)
    found: set[str] = set()
    for caller, node in _calls()[within.name]:
        named = next((each.value for each in node.keywords if each.arg == name), None)
        found |= _values(named if named is not None else node.args[place], caller)
    return found


@cache
def _calls() -> Mapping[str, list[tuple[Function, ast.Call]]]:
    """Every call by the name of what is called, with the outermost function that it is in."""
    found: defaultdict[str, list[tuple[Function, ast.Call]]] = defaultdict(list)
    for tree in _trees():
        for caller, node in _nodes(tree):
            if isinstance(node, ast.Call):
                found[_last(node.func)].append((caller, node))
    return found
