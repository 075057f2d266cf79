"""What `make core` takes for a test of an extra, and what it runs."""

from __future__ import annotations

import re

import pytest

from tests.without_extras import OF_EXTRAS, ROOT, imports_extra, imports_extra_when_called

TESTS = ROOT / "tests"


@pytest.mark.parametrize("pattern", [pattern for patterns in OF_EXTRAS.values() for pattern in patterns])
def test_a_pattern_names_a_file_and_its_tests(pattern: str) -> None:
    path, _, name = pattern.partition("::")
    assert (TESTS / path).exists()
    if name.startswith("test_"):
        names = re.findall(r"def (test_\w+)", (TESTS / path).read_text(encoding="utf-8"))
        function = name.partition(".*")[0]
        assert any(re.match(function, f"{test}[") for test in names)


@pytest.mark.parametrize(
    ("path", "is_of_extra"),
    [
        ("notify/test_watch.py", True),
        ("cli/services/test_serve.py", True),  # through a helper of tests/
        ("execute/steps/test_plan_executor.py", False),
        ("wire/conftest.py", False),  # one of its fixtures does, when it is called
    ],
)
def test_a_file_is_of_an_extra_by_what_it_imports_when_it_is_loaded(path: str, is_of_extra: bool) -> None:
    assert imports_extra(TESTS / path) is is_of_extra


def imports_when_called() -> object:
    from gpuops.extras.clusters import run

    return run


def calls_another() -> object:
    return imports_when_called()


def calls_none() -> None:
    assert not imports_extra(TESTS / "conftest.py")


def test_a_function_is_of_an_extra_by_what_it_imports_or_calls() -> None:
    assert imports_extra_when_called(imports_when_called) and imports_extra_when_called(calls_another)
    assert not imports_extra_when_called(calls_none)
