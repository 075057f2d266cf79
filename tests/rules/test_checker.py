"""The rules of our own: each finds what it is for, leaves the rest alone, and holds in the package."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.rules.checker import RULES, Rule, broken, broken_in, is_resting_loop

ROOT: Final = Path(__file__).resolve().parents[2]
SOMEWHERE: Final = "gpuops/plan/somewhere.py"
BAD: Final[dict[str, tuple[str, ...]]] = {
    "unverified-context": (
        "import ssl\nssl._create_unverified_context()",
        "from ssl import _create_unverified_context",
    ),
    "another-connection": (
        "from pyVim.connect import SmartConnect",
        "connect.SmartConnect(host='vc')",
        "SoapStubAdapter('vc')",
        "stub = VimSessionOrientedStub(adapter, login)",
    ),
    "trust-by-argument": ("connect(disableSslCertValidation=True)", "adapter(host, thumbprint=pin)"),
    "adapters": (
        "from pyVmomi import SoapAdapter",
        "import pyVim.connect",
        "from pyVmomi.SoapAdapter import Serialize",
    ),
    "another-client": ("import requests", "from urllib.request import urlopen", "import httpx"),
    "another-parser": ("etree.fromstring(reply)", "parser = ParserCreate()"),
    "another-clock": ("import time", "from time import sleep", "datetime.now(tz=UTC)", "date.today()"),
    "formatted-time": ("f'{moment:%H:%M}'", "f'{moment.astimezone(zone):on %Y}'", "moment.strftime('%H:%M')"),
    "loop-that-rests": ("while not done():\n    clock.pause(1.0)", "while True:\n    if late:\n        site.pause(1)"),
    "literal-exit-code": (
        "raise typer.Exit(3)",
        "sys.exit(2)",
        "def exit_code(self) -> int:\n    return 3 if self.refused else 0",
    ),
    "named-lock": ("path = folder / f'{name}.lock'", "text('SELECT pg_advisory_lock(1)')"),
    "endless-wait": ("task.WaitForTask(found)", "WaitForTask(found)"),
    "shell": ("run(words, shell=True)", "run(words, shell=maybe)", "os.system('ls')"),
    "any-yaml": ("yaml.load(text)", "yaml.load(text, Loader=yaml.FullLoader)", "yaml.unsafe_load(text)"),
    "any-file": ("path.read_text(encoding='utf-8')", "open(name)", "os.open(name, 0)", "tomllib.loads(text)"),
    "any-json": ("json.loads(text)", "yaml.load(text, Loader=yaml.SafeLoader)", "yaml.safe_load(text)"),
    "names-of-python": (
        "asdict(lease)",
        "dataclasses.astuple(lease)",
        "TypeAdapter(Lease)",
        "json_values(lease)",
        "json_text(lease)",
        "msgspec.json.encode(lease)",
        "journal.begin(type(request).__name__.lower())",
        "SetVmDrs.__name__ in body",
    ),
    "unboxed-template": ("Environment(loader=found)", "jinja2.Template(text)"),
    "formatted-log": ("log.info(f'{name} went')", "logger.warning('went ' + name)", "logging.error('%s' % name)"),
    "escaped-elsewhere": ("Text(visible(vm.name))", "from gpuops.report.layout import visible"),
    "printed": ("print('done')",),
    "revealed": ("text = target.password.reveal()",),
}
GOOD: Final[dict[str, tuple[str, ...]]] = {
    "unverified-context": ("context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)",),
    "another-connection": ("connection = network.open_connection(target, context)",),
    "trust-by-argument": ("network.tls_context(target)", "target.thumbprint"),
    "adapters": ("from pyVmomi import vim", "from gpuops.vsphere.transport.stub import Stub"),
    "another-client": ("import http", "from urllib.parse import quote"),
    "another-parser": ("from gpuops.vsphere.transport.messages import elements\nelements(reply)",),
    "another-clock": (
        "from gpuops.clock import wall_clock",
        "datetime.fromtimestamp(moment_s, UTC)",
        "from datetime import time",
    ),
    "formatted-time": ("f'{share:.0%} of {total:,}'", "f'{format_clock(moment)}'"),
    "loop-that-rests": ("for _ in clock.rounds((1.0,), 60.0):\n    look()", "while tasks:\n    tasks.pop()"),
    "literal-exit-code": (
        "output.leave(report.exit_code)",
        "def exit_code(self) -> int:\n    return report_exit_code(refused=self.refused)",
    ),
    "named-lock": ("vcenter_lock(state_dir, vcenter)", "lock.release()"),
    "endless-wait": ("watch.wait(tasks, 30.0)",),
    "shell": ("run(words, shell=False)", "run(words)"),
    "any-yaml": ("yaml.load(text, Loader=_PlainLoader)", "yaml.safe_load(text)", "yaml.SafeLoader"),
    "any-file": ("read_text(path)", "file.read_text(path, error=PolicyError)", "Journal.open(folder)"),
    "any-json": ("parse_json(text)", "parse_yaml(text, name)", "json.dumps(found)"),
    "names-of-python": (
        "to_stored(lease)",
        "json_values(to_stored(lease))",
        "stored_name(SetVmDrs) in body",
        "type(error).__name__",
    ),
    "unboxed-template": ("SandboxedEnvironment(autoescape=True)", "ImmutableSandboxedEnvironment()"),
    "formatted-log": ("log.info('%s went', name)", "told.info(f'{name}')"),
    "escaped-elsewhere": ("Text(vm.name)", "from gpuops.report.layout import Text"),
    "printed": ("output.show(text, document)", "console.print(text)"),
    "revealed": ("target.password",),
}


@pytest.mark.parametrize(
    ("rule", "source"), [(rule, source_text) for rule, sources in BAD.items() for source_text in sources]
)
def test_what_a_rule_is_for_is_found(rule: str, source: str) -> None:
    assert any(f": {rule}: " in line for line in broken(source, SOMEWHERE))


@pytest.mark.parametrize(
    ("rule", "source"), [(rule, source_text) for rule, sources in GOOD.items() for source_text in sources]
)
def test_the_right_way_is_left_alone(rule: str, source: str) -> None:
    assert [line for line in broken(source, SOMEWHERE) if f": {rule}: " in line] == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.places], ids=lambda rule: rule.name)
def test_a_rule_is_silent_in_its_places(rule: Rule) -> None:
    for place in rule.places:
        assert (ROOT / place).exists(), "a place that is gone"
        for source in BAD[rule.name]:
            assert not any(f": {rule.name}: " in line for line in broken(source, place))


def test_every_rule_has_bad_and_good_examples() -> None:
    assert set(BAD) == set(GOOD) == {rule.name for rule in RULES}


def test_tests_wait_by_wait_until() -> None:
    """The loops of these files do something between two looks, never end, or are coroutines."""
    files = [file for file in sorted((ROOT / "tests").rglob("*.py")) if "sleep(" in file.read_text(encoding="utf-8")]
    resting = {file for file in files for node in ast.walk(ast.parse(file.read_bytes())) if is_resting_loop(node)}
    assert {file.relative_to(ROOT / "tests").as_posix() for file in resting} == {
        "fleet/play.py",
        "kills/loop.py",
        "notify/test_hostile_receivers.py",
        "runner/memory_queue.py",
        "runner/test_queue.py",
        "runner/test_service.py",
        "soak_services.py",
        "threats/remove.py",
        "wire/guests/measuring/gpu_time.py",
    }


@pytest.mark.timeout(600)  # many seconds of CPU, on a machine that others use too
def test_the_package_breaks_none() -> None:
    assert broken_in(ROOT) == []
