"""One operation of the table, and what it comes to, as words that both simulators can be compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, NamedTuple

from pyVmomi import VmomiSupport, vim, vmodl

from tests.peers.vcsim_table.site import Site, TaskFailed

ENDED: Final = "the server ends"
"""It crashed: what is done after it needs another server."""
LONGEST: Final = 60
"""Characters of a value in the table."""

Step = Callable[[Site], Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """A call on an object of a site; `read` gives what it changed there."""

    subject: str
    """Type and method of the API; the method alone is looked up in the manual."""
    case: str
    """With which arguments, in which state."""
    do: Step
    read: Step | None = None
    last: bool = False
    """Whether it leaves vcsim in a state in which it soon ends: then what follows is done on new servers."""

    @property
    def name(self) -> str:
        return f"{self.subject}: {self.case}"


class Case(NamedTuple):
    """What is done in a case, and the fields of `Operation` of the same names."""

    do: Step
    read: Step | None = None
    last: bool = False


Cases = Mapping[str, Mapping[str, Case | tuple[Step, Step] | Step]]
"""By subject and case: what is done, or that and what is read afterwards."""


def operations(*groups: Cases) -> tuple[Operation, ...]:
    """Return the operations of these groups in their order."""
    return tuple(
        Operation(subject, name, *(case if isinstance(case, tuple) else (case,)))
        for group in groups
        for subject, cases in group.items()
        for name, case in cases.items()
    )


def outcome(operation: Operation, site: Site) -> str:
    """What the operation comes to: its result or fault, of the call or of the task, and what was read afterwards."""
    came = _came(operation.do, site)
    if operation.read is None or came == ENDED:
        return came
    return f"{came}; then {_came(operation.read, site, exact=True)}"


def _came(step: Step, site: Site, *, exact: bool = False) -> str:
    try:
        result = step(site)
        if isinstance(result, vim.Task):
            return f"task: {describe(site.ended(result))}"
        return exactly(result) if exact else describe(result)
    except TaskFailed as failed:
        return f"task: {type(failed.fault).__name__.rpartition('.')[2]}"
    except vmodl.MethodFault as fault:
        return f"call: {type(fault).__name__.rpartition('.')[2]}"
    except (OSError, HTTPException):
        return ENDED
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # what pyvmomi raises for a reply it cannot read
        return f"client: {type(error).__name__}"


def describe(value: Any) -> str:
    """The class of a result; of a list the classes of its items."""
    if isinstance(value, list):
        return f"list of {' and '.join(sorted({describe(element) for element in value})) or 'nothing'}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return VmomiSupport.GetWsdlName(type(value))


def exactly(value: Any) -> str:
    """A value as it is; of objects their class."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(exactly(element) for element in value)}]"
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = " ".join(str(value).split())
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return describe(value)
