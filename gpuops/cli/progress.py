"""Progress: each step as it ends, on stderr; stdout is for the result alone."""

from __future__ import annotations

from gpuops.cli import output
from gpuops.model.inventory import Inventory
from gpuops.plan.outcome import Outcome, Report


class Progress:
    """Watches one run: told of the plan before its first step, then of each outcome."""

    def __init__(self) -> None:
        self.inventory: Inventory | None = None
        self.steps = 0
        self.ended = 0

    def begin(self, report: Report) -> None:
        self.inventory, self.steps, self.ended = report.before, len(report.plan.steps), 0

    def __call__(self, outcome: Outcome) -> None:
        from rich.text import Text

        from gpuops.report.plan_text import outcome_line

        self.ended += 1
        if self.inventory is not None and self.steps > 1:
            output.note(Text(f"[{self.ended}/{self.steps}] ", "dim").append(outcome_line(outcome, self.inventory)))
