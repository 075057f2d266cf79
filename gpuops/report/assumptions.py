"""What `gpuops doctor --assumptions` prints: the rules gpuops goes by, how sure each is, and what the journal says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuops.model.assumption import Assumption
from gpuops.model.prediction import PastPredictions
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count


def assumptions_text(rows: Iterable[Assumption], past: PastPredictions) -> Shown:
    """A table of all rows, and how many predicted steps it rests on."""
    table = TextTable("assumption", "confidence", "here", "rule")
    for row in rows:
        table.add_row(row.id, row.confidence, _standing(row, past), row.statement)
    steps = f"{count(past.right, 'step')} of this journal went as predicted, {len(past.wrong)} did not"
    return (table, Text(steps, "bold"), Text("next: gpuops help assumptions says how to test a rule", "dim"))


def assumptions_document(rows: Iterable[Assumption], past: PastPredictions) -> Document:
    """The same for programs."""
    contradictions = Counter(wrong.found.what for wrong in past.wrong)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "assumptions",
        "journal": past.journal,
        "predicted_steps": past.right + len(past.wrong),
        "assumptions": [
            {
                "id": row.id,
                "statement": row.statement,
                "source": row.source,
                "confidence": row.confidence.value,
                "deviation": row.deviation or None,
                "prediction": row.prediction.value if row.prediction is not None else None,
                "contradicted": contradictions[row.prediction] if row.prediction is not None else None,
            }
            for row in rows
        ],
    }


def _standing(row: Assumption, past: PastPredictions) -> str:
    if row.prediction is None:
        return "not seen by gpuops"
    wrong = sum(misprediction.found.what is row.prediction for misprediction in past.wrong)
    if wrong:
        return f"contradicted {wrong} x"
    return "never contradicted" if past.right else "not tried"
