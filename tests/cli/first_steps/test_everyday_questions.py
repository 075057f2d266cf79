"""Ten questions of every day: `gpuops help WORDS` shows the page, and the line that answers is on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import Result

QUESTIONS = [
    ("How do I give a VM a vGPU?", "attach", "gpuops attach ml-07 --profile a100-3-20c"),
    ("How do I take it back?", "attach", "gpuops detach ml-07"),
    ("Which profiles may run on one GPU together?", "profiles", "same-size mode: profiles of one memory size"),
    ("How do I never suspend this desktop?", "marks", "gpuops rotate mark --opt-out --vm vdi-07"),
    ("A user needs a desktop now: how do I bring it back?", "rotation", "gpuops rotate restore --vm vdi-07"),
    ("How does a night run by itself?", "timers", "gpuops rotate timers --policy"),
    ("The night was killed: what do I type?", "rotation", "gpuops rotate resume"),
    ("Which rights does the account need?", "roles", "gpuops roles apply --file templates/roles/one-account.yaml"),
    ("How do I set the scheduler, and reboot host after host?", "change", "--reboot rolling"),
    ("How do I remove gpuops, and what stays in vCenter?", "upgrade", "gpuops inventory --vms"),
]


@pytest.mark.parametrize(("question", "words", "answer"), QUESTIONS, ids=[question for question, *_ in QUESTIONS])
def test_the_page_answers(gpuops: Callable[..., Result], question: str, words: str, answer: str) -> None:
    page = gpuops("help", *words.split())
    assert page.exit_code == 0
    assert answer in page.stdout, question
