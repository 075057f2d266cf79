"""Makes the tables of `gpuops/sim/SIMULATED.md` from the simulator's own sources: its methods, and its refusals.

`pytest tests/sim/scenario/test_simulated_page.py --refresh-golden` writes them anew.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyVmomi import VmomiSupport, vmodl

import gpuops.sim
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.scenario.build import build
from gpuops.sim.world import API_VERSION
from tests.sim.objects.all_managers import ask_for_all

HOME: Final = Path(gpuops.sim.__file__).parent
PACKAGES: Final = ("state", "operations", "inventory", "objects", "services", "managers", "vcenter")
"""Where faults are raised because of a rule; `wire` and `core` answer invalid requests."""
_CITED: Final = re.compile(r"\(((?:vSphere|VMware|NVIDIA|KB|from memory)(?=[ ,;:)])[^()]*(?:\([^()]*\)[^()]*)*)\)")
_ROOTS: Final = ("VimFault", "MethodFault")
_OWN: Final = "The simulated vCenter "
_HELPERS: Final = HOME / "inventory" / "faults.py"


def sections() -> dict[str, str]:
    """Each generated part of the page by its name."""
    return {"methods": methods(), "refusals": refusals()}


# --- methods --------------------------------------------------------------------------------------------------


def methods() -> str:
    """A row for each type of managed object: the methods that are simulated, and how many of all those of the API."""
    simulated = _simulated_methods()
    rows = ["| Type | Methods | of |", "|---|---|---|"]
    bare = []
    for name in sorted(simulated):
        api_methods = _of_the_api(name)
        if simulated[name]:
            rows.append(f"| {name} | {', '.join(sorted(simulated[name]))} | {len(api_methods) or ''} |")
        else:
            bare.append(name)
    return "\n".join([*rows, "", f"There with their properties alone: {', '.join(bare)}."])


@cache
def _simulated_methods() -> Mapping[str, set[str]]:
    """The methods by WSDL name of the type: of the classes of the simulator, and of the objects of a scenario."""
    methods_by_type: defaultdict[str, set[str]] = defaultdict(set)
    for module in pkgutil.walk_packages(gpuops.sim.__path__, "gpuops.sim."):
        if not module.name.endswith("pytest_plugin"):
            importlib.import_module(module.name)
    for kind in _below(ManagedObject):
        if "wsdl_name" in kind.__dict__ and kind.__module__.startswith("gpuops."):
            methods_by_type[kind.wsdl_name] |= set(kind.methods)
    for obj in ask_for_all(build("lab")).registry:
        methods_by_type[obj.wsdl_name] |= set(obj.methods)
    return methods_by_type


def _below(kind: type[ManagedObject]) -> Iterator[type[ManagedObject]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _below(subclass)


def _of_the_api(wsdl_name: str) -> set[str]:
    """The methods that a type has in the version that the simulator speaks; none for a type of no public table."""
    newest = VmomiSupport.versionMap[f"vim25/{API_VERSION}"]
    method_names: set[str] = set()
    for kind in VmomiSupport.GetWsdlType("urn:vim25", wsdl_name).__mro__:
        infos: Mapping[str, Any] = kind.__dict__.get("_methodInfo", {})
        method_names |= {info.wsdlName for info in infos.values() if VmomiSupport.IsChildVersion(newest, info.version)}
    return method_names


# --- refusals -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """One `raise`: the fault, what it says, and whose rule it is."""

    fault: str
    says: str
    rule: str


def refusals() -> str:
    """For each module that refuses anything: what it says of itself, and a row per refusal."""
    declared = _declaring()
    parts = []
    for package in PACKAGES:
        for path in sorted((HOME / package).rglob("*.py")):
            module = _Module(path)
            module_refusals = list(dict.fromkeys(module.refusals(declared)))
            if path == _HELPERS or not (module_refusals or (package == "state" and _CITED.search(module.said))):
                continue
            parts.append(f"### {path.relative_to(HOME).as_posix()}\n\n{module.said}")
            if module_refusals:
                rows = "\n".join(
                    f"| {refusal.fault} | {refusal.says} | {refusal.rule} |" for refusal in module_refusals
                )
                parts[-1] += f"\n\n| Fault | Says | Rule |\n|---|---|---|\n{rows}"
    return "\n\n".join(parts)


def _declaring() -> dict[str, set[str]]:
    """By fault: the simulated methods that the API declares it for."""
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for name, simulated in _simulated_methods().items():
        for kind in VmomiSupport.GetWsdlType("urn:vim25", name).__mro__:
            for info in kind.__dict__.get("_methodInfo", {}).values():
                if info.wsdlName in simulated:
                    for fault in info.faults or ():
                        methods[fault.rpartition(".")[2]].add(info.wsdlName)
    return methods


def _rule(fault: str, declared: Mapping[str, set[str]]) -> str:
    """The rule behind a fault for which no source is cited: the API's, where it declares the fault or its kind."""
    try:
        kinds = VmomiSupport.GetWsdlType("urn:vim25", fault).__mro__
    except KeyError:
        return "from memory"
    if vmodl.RuntimeFault in kinds:
        return "RuntimeFault, of any method"
    names = [kind.__name__.rpartition(".")[2] for kind in kinds]
    lineage = names[: next((number for number, name in enumerate(names) if name in _ROOTS), len(names))]
    methods = sorted({method for name in lineage for method in declared.get(name, ())})
    return f"declared by {_some(methods)}" if methods else "from memory"


def _some(names: list[str]) -> str:
    first_names = ", ".join(names[:3])
    return first_names if len(names) <= 3 else f"{first_names} and {len(names) - 3} more"


class _Module:
    """One module of the simulator: what it says of itself, and what it raises."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.said = ast.get_docstring(self.tree) or ""

    def refusals(self, declared: Mapping[str, set[str]]) -> Iterator[Refusal]:
        """In the order of the source; the rule is the source cited in the function, in the module, or the API's."""
        helpers = _shared_faults() | _faults_of(self.tree)
        for function in sorted(_functions(self.tree), key=lambda node: node.lineno):
            raised = [node.exc for node in _own_nodes(function) if isinstance(node, ast.Raise)]
            texts = _assigned_texts(function) if raised else {}
            for exception in raised:
                fault, says = _fault_of_call(exception, helpers, texts) if isinstance(exception, ast.Call) else ("", "")
                if fault:
                    is_own_text = says.startswith(_OWN)
                    yield Refusal(
                        fault,
                        says,
                        "not simulated" if is_own_text else self._cited_sources(function) or _rule(fault, declared),
                    )

    def _cited_sources(self, function: ast.FunctionDef) -> str:
        """The sources that a function names in docstring and comments; else "as above" where the module names any."""
        lines = self.text.splitlines()[function.lineno - 1 : function.end_lineno]
        sources = _CITED.findall(" ".join(" ".join(lines).replace("#", " ").split()))
        return "; ".join(dict.fromkeys(sources)) or ("as above" if _CITED.search(self.said) else "")


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own_nodes(child)


def _assigned_texts(function: ast.FunctionDef) -> dict[str, str]:
    """The texts that a function gives names to; of several for one name, all of them."""
    texts_by_name: defaultdict[str, list[str]] = defaultdict(list)
    for statement in _own_nodes(function):
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and (text := _text_of(statement.value))
        ):
            texts_by_name[statement.targets[0].id].append(text)
    return {name: " / ".join(texts) for name, texts in texts_by_name.items()}


@cache
def _shared_faults() -> dict[str, tuple[str, str]]:
    return _faults_of(ast.parse(_HELPERS.read_text(encoding="utf-8")))


def _faults_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """By the name of a function that makes a fault: (its type, its text); an empty type is that of an argument."""
    faults = {}
    for function in _functions(tree):
        if function.returns is not None and ast.unparse(function.returns) == "Exception":
            named = next(filter(None, map(_type, ast.walk(function))), "")
            calls = [node for node in _own_nodes(function) if isinstance(node, ast.Call)]
            texts = [_text_of(argument) for call in calls for argument in _arguments(call)]
            faults[function.name] = (named, max([*texts, *_assigned_texts(function).values()], key=len, default=""))
    return faults


def _fault_of_call(call: ast.Call, helpers: Mapping[str, tuple[str, str]], texts: Mapping[str, str]) -> tuple[str, str]:
    """(fault, text) of `vim.fault.X(msg=…)`, `faults.helper(…)`, `_helper(…)` or `TagFault("not_found", …)`."""
    texts_given = [_text_of(argument) or texts.get(getattr(argument, "id", ""), "") for argument in _arguments(call)]
    longest = max(texts_given, key=len, default="").replace("|", "\\|")
    if named := _type(call.func):
        return named, longest
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "TagFault":
        return f"`{texts_given[0]}`", max(texts_given[1:], key=len, default="")
    if name not in helpers:
        return "", ""
    fault, template = helpers[name]
    fault = fault or next(filter(None, map(_type, call.args)), "")
    if not template or longest.endswith("."):
        return fault, longest
    return fault, template if " " in longest else template.replace("…", longest or "…", 1)


def _arguments(call: ast.Call) -> list[ast.expr]:
    """Yield the arguments that may hold the text of a fault."""
    return [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("msg", "text", "reason"))]


def _type(node: ast.AST) -> str:
    """`NotFound` of `vim.fault.NotFound`."""
    spelled = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    match = re.fullmatch(r"(?:vim|vmodl)\.(?:fault|query)\.([A-Z]\w+)", spelled)
    return match[1] if match else ""


def _text_of(node: ast.expr) -> str:
    """A text as it stands in the source, what is filled in as `…`; empty for what is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.IfExp(body=first, orelse=second):
            return " / ".join(filter(None, (_text_of(first), _text_of(second))))
        case ast.BoolOp(values=values):
            return max(map(_text_of, values), key=len)
        case _:
            return ""


def renew_page(page: str, parts: Mapping[str, str]) -> str:
    """The page with these generated parts in the place of its own."""
    for name, text in parts.items():
        begin, end = f"<!-- {name}: made by tests/sim/scenario/simulated_page.py -->", f"<!-- end of {name} -->"
        before, _, text_after = page.partition(begin)
        page = f"{before}{begin}\n\n{text}\n\n{end}{text_after.partition(end)[2]}"
    return page
