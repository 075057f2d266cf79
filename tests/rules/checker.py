"""Checker: rules of our own about what may stand where, read off the syntax tree. Each has a reason and its places.

ruff's rules (S among them) hold in the whole tree; these are of this house: one way to a vCenter, one place that shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

Finds = Callable[[ast.AST], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """What must not stand anywhere but in these places (files or folders of the package)."""

    name: str
    reason: str
    finds: Finds
    places: tuple[str, ...] = ()

    def speaks_of(self, path: str) -> bool:
        return not path.startswith(self.places) if self.places else True


@lru_cache(maxsize=10_000)  # each rule asks anew
def called_name(node: ast.AST) -> str:
    """The dotted name of what is called; empty for anything else."""
    return _dotted_name(node.func) if isinstance(node, ast.Call) else ""


def _dotted_name(node: ast.expr) -> str:
    """As `ast.unparse` writes it, which takes twenty times as long for a name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_dotted_name(owner)}.{name}"
        case _:
            return ast.unparse(node)


def last(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _keyword(node: ast.AST, name: str) -> ast.expr | None:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == name), None)


def imported_names(node: ast.AST) -> tuple[str, ...]:
    """The dotted names that an import statement brings."""
    match node:
        case ast.Import(names=names):
            return tuple(alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=0):
            return tuple(f"{module}.{alias.name}" for alias in names)
        case _:
            pass
    return ()


def _imports(*modules: str) -> Finds:
    def finds(node: ast.AST) -> bool:
        return any(
            name == module_name or name.startswith(f"{module_name}.")
            for name in imported_names(node)
            for module_name in modules
        )

    return finds


def _is_unverified(node: ast.AST) -> bool:
    names = ("_create_unverified_context", "_create_default_https_context")
    return (isinstance(node, ast.Attribute) and node.attr in names) or any(
        last(name) in names for name in imported_names(node)
    )


def _other_connections(node: ast.AST) -> bool:
    names = ("SmartConnect", "SmartStubAdapter", "SoapStubAdapter", "SessionOrientedStub", "VimSessionOrientedStub")
    return last(called_name(node)) in names or any(last(name) in names for name in imported_names(node))


def _trust_by_argument(node: ast.AST) -> bool:
    return any(_keyword(node, name) is not None for name in ("disableSslCertValidation", "certKeyFile", "thumbprint"))


def _shell(node: ast.AST) -> bool:
    value = _keyword(node, "shell")
    plain = isinstance(value, ast.Constant) and value.value is False
    shells = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
    runs = last(called_name(node)) in ("run", "Popen", "call", "check_call", "check_output", "create_subprocess_shell")
    return (runs and value is not None and not plain) or called_name(node) in shells


def _any_yaml(node: ast.AST) -> bool:
    unsafe = ("Loader", "UnsafeLoader", "FullLoader", "CLoader", "CFullLoader", "CUnsafeLoader")
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "yaml" and node.attr in unsafe:
        return True
    if called_name(node) in ("yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"):
        return True
    return called_name(node) in ("yaml.load", "yaml.load_all") and _keyword(node, "Loader") is None


def _unboxed_templates(node: ast.AST) -> bool:
    return called_name(node) in ("Environment", "NativeEnvironment", "jinja2.Environment", "jinja2.Template")


def _formatted_log(node: ast.AST) -> bool:
    methods = ("debug", "info", "warning", "error", "exception", "critical", "log")
    owner, _, method = called_name(node).rpartition(".")
    if not isinstance(node, ast.Call) or method not in methods or "log" not in owner.lower():
        return False
    return any(isinstance(argument, ast.JoinedStr | ast.BinOp) for argument in node.args)


def _call_of(*names: str) -> Finds:
    return lambda node: last(called_name(node)) in names


def _is_print(node: ast.AST) -> bool:
    return called_name(node) == "print"


def _names_visible(node: ast.AST) -> bool:
    return last(called_name(node)) == "visible" or "gpuops.report.layout.visible" in imported_names(node)


def _parsed_xml(node: ast.AST) -> bool:
    return called_name(node) in ("etree.fromstring", "etree.parse", "etree.XML", "etree.XMLParser", "ParserCreate")


def _asks_the_machine_for_the_time(node: ast.AST) -> bool:
    clock_calls = ("now", "utcnow", "today", "fromtimestamp")
    owner, _, method = called_name(node).rpartition(".")
    named = method in clock_calls and owner in ("datetime", "date", "datetime.datetime", "datetime.date")
    in_utc = method == "fromtimestamp" and isinstance(node, ast.Call) and len(node.args) + len(node.keywords) == 2
    return (named and not in_utc) or any(name == "time" or name.startswith("time.") for name in imported_names(node))


def _any_file(node: ast.AST) -> bool:
    dotted = called_name(node)
    if dotted in ("open", "os.open", "io.open", "tomllib.load", "tomllib.loads", "json.load", "Path.open"):
        return True
    # `file.read_text(path)` is the door; a path's own method has no path among its arguments
    return (
        isinstance(node, ast.Call)
        and last(dotted) in ("read_text", "read_bytes")
        and "." in dotted
        and dotted.rpartition(".")[0] != "file"
    )


def _any_json(node: ast.AST) -> bool:
    return called_name(node) in ("json.loads", "yaml.load", "yaml.safe_load")


def _names_of_python(node: ast.AST) -> bool:
    calls = ("asdict", "astuple", "TypeAdapter", "model_dump", "model_dump_json")
    if last(called_name(node)) in calls or called_name(node).startswith(("msgspec.json.encode", "msgspec.to_builtins")):
        return True
    if isinstance(node, ast.Call) and last(called_name(node)) in ("json_values", "json_text"):
        return last(called_name(node.args[0])) != "to_stored"
    if not isinstance(node, ast.Attribute) or node.attr not in ("__name__", "__qualname__"):
        return False
    return ast.unparse(node.value) not in ("type(error)", "type(cause)")  # the class of an error, in a message


def _named_lock(node: ast.AST) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and "\n" not in text and (text.endswith(".lock") or "pg_advisory" in text)


def _literal_exit_code(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        codes = [
            return_node.value
            for return_node in ast.walk(node)
            if isinstance(return_node, ast.Return) and return_node.value is not None
        ]
        return node.name.endswith("exit_code") and any(_number(child) for code in codes for child in ast.walk(code))
    ends = last(called_name(node)) in ("Exit", "SystemExit", "exit", "_exit", "leave", "TaskResult")
    return ends and isinstance(node, ast.Call) and any(_number(argument) for argument in node.args)


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value != 0


def is_resting_loop(node: ast.AST) -> bool:
    rests = ("sleep", "pause", "_pause")
    return isinstance(node, ast.While) and any(last(called_name(child)) in rests for child in ast.walk(node))


_TIME_SPEC: Final = re.compile(r"%[A-Za-z]")


def _formatted_time(node: ast.AST) -> bool:
    spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
    return last(called_name(node)) == "strftime" or (
        spec is not None and _TIME_SPEC.search(ast.unparse(spec)) is not None
    )


TRANSPORT: Final = "gpuops/vsphere/transport/"
RULES: Final = (
    Rule("unverified-context", "a context that verifies nothing is shared by all who find it", _is_unverified),
    Rule(
        "another-connection",
        "pyVmomi's own connections trust what they meet; network.py opens ours",
        _other_connections,
    ),
    Rule(
        "trust-by-argument",
        "pyVmomi's thumbprint= and its like switch verification off",
        _trust_by_argument,
        ("gpuops/config/", "gpuops/console/opening.py"),
    ),
    Rule(
        "adapters",
        "transport alone uses pyVmomi's adapters; the simulator reads requests by them",
        _imports("pyVmomi.SoapAdapter", "pyVim"),
        (TRANSPORT, "gpuops/sim/wire/soap.py"),
    ),
    Rule(
        "another-client",
        "redirects, the environment's proxies and packed replies come with them",
        _imports("requests", "urllib3", "urllib.request", "httpx", "aiohttp"),
        # httpx is configured to do nothing of it; tests/broker/test_hostile.py checks that
        (TRANSPORT, "gpuops/broker/horizon.py"),
    ),
    Rule(
        "another-parser",
        "whatever comes is checked before a parser has it",
        _parsed_xml,
        # smi.py reads at most a megabyte, without entities; tests/plan/guest/test_smi.py checks that
        (TRANSPORT, "gpuops/sim/", "gpuops/plan/guest/check_output.py"),
    ),
    Rule(
        "another-clock",
        "clock.py alone asks the machine for the time, so that a test moves it for the whole program at once",
        _asks_the_machine_for_the_time,
        ("gpuops/clock.py",),
    ),
    Rule(
        "formatted-time",
        "model/time_text.py alone knows formats of time, so that a moment looks the same everywhere",
        _formatted_time,
        ("gpuops/model/time_text.py", "gpuops/sim/"),  # the simulator imports nothing of the model but devices
    ),
    Rule(
        "loop-that-rests",
        "clock.rounds looks again until the time is up, and once more then",
        is_resting_loop,
        (
            "gpuops/clock.py",
            "gpuops/execute/site/vcenter_wait.py",  # by the hours of a policy, with rests that outlast a wait
            "gpuops/extras/observe/observing.py",  # from here on services: they go on for ever
            "gpuops/execute/rotation/watch.py",
            "gpuops/extras/declare/drift.py",
            "gpuops/extras/web/http/current.py",
            "gpuops/sim/",  # a vCenter of its own
        ),
    ),
    Rule(
        "literal-exit-code",
        "errors.py alone knows the numbers of exit codes",
        _literal_exit_code,
        ("gpuops/errors.py",),
    ),
    Rule(
        "named-lock",
        "state/lock.py has the names of all locks, which never change",
        _named_lock,
        ("gpuops/execute/state/lock.py", "gpuops/sim/"),
    ),
    Rule("endless-wait", "it has no deadline, and no end when cancelled", _call_of("WaitForTask", "wait_for_task")),
    Rule("shell", "a name in a command would be one", _shell),
    Rule("any-yaml", "YAML can make objects; yaml_file.py reads what people write", _any_yaml),
    Rule(
        "any-file",
        "a path may lead to a device, a pipe or a file of any size; files/file.py opens what users name",
        _any_file,
        (
            "gpuops/files/file.py",
            "gpuops/execute/",  # the state directory's own, checked by state/state_dir.py
            "gpuops/extras/diagnosis/diagnoses.py",
            "gpuops/extras/notify/outbox.py",
            "gpuops/catalog/catalog_files.py",  # from here on what gpuops brings
            "gpuops/catalog/catalog_files.py",
            "gpuops/guest_scripts/script_commands.py",
            "gpuops/sim/scenario/deviations.py",
            "gpuops/cli/app.py",
            "gpuops/console/failure.py",
            "gpuops/cli/first_steps/help.py",
            "gpuops/console/output.py",
            "gpuops/extras/fleet/sites/processes.py",  # the null device
            "gpuops/extras/bundle/harmless.py",
            "gpuops/extras/web/page/html.py",
            "gpuops/extras/web/http/web_server.py",
            "gpuops/sim/guests/marked_processes.py",  # the kernel's, of processes
            "gpuops/sim/scenario/scenario_file.py",
            "gpuops/sim/fault_injection/rule.py",
            "gpuops/sim/vcenter/perf_counters.py",
            "gpuops/sim/render/config_target.py",
            "gpuops/sim/wire/sim_client.py",
        ),
    ),
    Rule(
        "any-json",
        "a text may be nested without end or hold endless digits; files/file.py and yaml_file.py have limits",
        _any_json,
        (
            "gpuops/files/file.py",
            "gpuops/files/yaml_file.py",
            "gpuops/execute/",  # bodies of journal records, which the journal checks
            "gpuops/extras/clusters/existing.py",
            "gpuops/extras/clusters/run.py",
            "gpuops/extras/diagnosis/diagnoses.py",
            "gpuops/plan/devices/settings.py",  # attributes of VMs: short, and read with their errors
            "gpuops/plan/rotation/lease_rules.py",
            "gpuops/plan/guest/check_output.py",  # at most 64 KiB, and read with their errors
            "gpuops/catalog/catalog_files.py",  # from here on what gpuops brings
            "gpuops/catalog/catalog_files.py",
            "gpuops/extras/bundle/harmless.py",
            "gpuops/extras/bundle/bundle_scenario.py",  # and what it wrote itself
            "gpuops/sim/scenario/deviations.py",
            "gpuops/sim/scenario/scenario_file.py",
            "gpuops/sim/fault_injection/rule.py",
            "gpuops/sim/vcenter/perf_counters.py",
            "gpuops/sim/wire/automation/services.py",  # requests to the simulator
            "gpuops/sim/wire/admin.py",
            "gpuops/console/output.py",  # what it wrote itself
            "gpuops/ansible_collections/",
        ),
    ),
    Rule(
        "names-of-python",
        "what is stored has names of its own, of model/stored.py: a class or field may be renamed",
        _names_of_python,
        (
            "gpuops/model/stored.py",
            "gpuops/config/",  # keys of files that people write are public
            "gpuops/model/stored_json.py",
            "gpuops/execute/journal/book.py",  # from here on classes with stored names
            "gpuops/extras/diagnosis/diagnoses.py",
            "gpuops/execute/journal/orders.py",  # from here on nothing that is stored
            "gpuops/api/__init__.py",
            "gpuops/extras/fleet/runner/shared_targets.py",
            "gpuops/broker/",
            "gpuops/cli/",
            "gpuops/report/",
            "gpuops/extras/bundle/bundle_scenario.py",
            "gpuops/extras/web/page/html.py",
            "gpuops/sim/",
            "gpuops/vsphere/",
        ),
    ),
    Rule("unboxed-template", "a template that people edit must not reach Python", _unboxed_templates),
    Rule("formatted-log", "what is formatted early cannot be told from what we say", _formatted_log),
    Rule(
        "printed", "cli/output.py makes text harmless and knows where it goes", _is_print, ("gpuops/console/output.py",)
    ),
    Rule(
        "escaped-elsewhere",
        "report/layout.py escapes every line, cell and label: a view gives it names as they are",
        _names_visible,
        (
            "gpuops/report/layout.py",
            "gpuops/report/json_and_csv.py",  # from here on what layout does not print: cells of CSV
            "gpuops/extras/web/page/html.py",
            "gpuops/extras/clusters/view.py",  # lines of a guest's program, which are stored too
        ),
    ),
    Rule(
        "revealed",
        "a secret becomes text where it is put on the wire",
        _call_of("reveal"),
        (
            "gpuops/config/vcenter/targets.py",  # its scheme and host alone are shown
            "gpuops/extras/notify/sending.py",
            "gpuops/broker/horizon.py",
            "gpuops/extras/web/http/access.py",  # it becomes a digest, to compare with
            "gpuops/model/vcenter/target.py",  # it is looked for in text, and withheld there
            "gpuops/extras/clusters/view.py",  # for its length
            "gpuops/vsphere/session.py",
            "gpuops/vsphere/transport/wire.py",
            "gpuops/vsphere/transport/automation_login.py",
            "gpuops/vsphere/guests/guest_login.py",
            "gpuops/vsphere/guests/guest_commands.py",
        ),
    ),
)


def broken(source: str, path: str) -> Iterator[str]:
    """What this file breaks, a line each: place, rule, reason. `path` is relative to the project."""
    spoken = (
        ast.Call,
        ast.Attribute,
        ast.Import,
        ast.ImportFrom,
        ast.FormattedValue,
        ast.While,
        ast.FunctionDef,
        ast.Constant,
    )
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, spoken)]
    for rule in RULES:
        if rule.speaks_of(path):
            for node in nodes:
                if rule.finds(node):
                    yield f"{path}:{getattr(node, 'lineno', 0)}: {rule.name}: {rule.reason}"


def broken_in(root: Path) -> list[str]:
    """The same of every Python file of the package."""
    files = sorted((root / "gpuops").rglob("*.py"))
    return [
        line for file in files for line in broken(file.read_text(encoding="utf-8"), file.relative_to(root).as_posix())
    ]
