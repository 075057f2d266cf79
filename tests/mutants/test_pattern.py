"""A pattern matches code by its shape: what may change without breaking it, and what is refused."""

from __future__ import annotations

import pytest

from tests.mutants.pattern import file_of, replace_code
from tests.mutants.table import ROOT

SOURCE = '''
class Queue:
    def take(self, vm, *, count=1):
        """Take VMs."""
        if vm is None:  # nobody
            raise ValueError("no VM")
        elif count > 1:
            log(f"{count} VMs", vm)
        try:
            return self.pop(vm, count)
        except KeyError as lost:
            return str(lost)
'''


@pytest.mark.parametrize(
    ("pattern", "replacement", "line"),
    [
        ("$x is None", "$x is not None", "        if vm is not None:"),
        ("$count > 1", "$count > 2", "        elif count > 2:"),
        ("log($$arguments)", "log($$arguments, 1)", "            log(f'{count} VMs', vm, 1)"),
        ("if $x is None: $$body\nelse: $$rest", "$$rest", "        if count > 1:"),
        ("raise ValueError($message)", "", "            pass"),
        ("except KeyError as $e: $$body", "except OSError as $e: $$body", "        except OSError as lost:"),
    ],
)
def test_code_is_replaced_whatever_its_locals_and_comments(pattern: str, replacement: str, line: str) -> None:
    mutated = replace_code(SOURCE, "Queue.take", pattern, replacement)
    assert line in mutated.splitlines()
    renamed = SOURCE.replace("vm", "guest").replace("lost", "missing").replace("  # nobody", "")
    assert (
        line.replace("vm", "guest").replace("lost", "missing")
        in replace_code(renamed, "Queue.take", pattern, replacement).splitlines()
    )


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("return $x", "matches 2 times"), ("$x is True", "matches 0 times"), ("$x > 1", "changes nothing")],
)
def test_a_pattern_that_fits_no_place_or_several_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace_code(SOURCE, "Queue.take", pattern, pattern)


def test_a_replacement_uses_only_what_the_pattern_has_matched() -> None:
    with pytest.raises(KeyError):
        replace_code(SOURCE, "Queue.take", "$x is None", "$y is None")


def test_a_definition_is_looked_up_by_its_qualified_name() -> None:
    assert file_of(ROOT, "StepExecutor.submit") == ("gpuops/execute/steps/step_executor.py", "StepExecutor.submit")
    assert file_of(ROOT, "execute.steps.settle:_wait_for_ends") == ("gpuops/execute/steps/settle.py", "_wait_for_ends")
    with pytest.raises(ValueError, match="is defined in 0 files"):
        file_of(ROOT, "StepExecutor.nothing")
