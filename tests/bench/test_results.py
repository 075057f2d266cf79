"""RESULTS.md: a section is renewed alone, says what it was made by, and is kept where its benchmark lacks its input."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench import __main__ as bench
from tests.bench import results
from tests.bench.reads import commands, wires
from tests.bench.simulator import simulators
from tests.bench.verdict import Figure, Result

PAGE = "# Results\n\nIntroduction.\n\n## help\n\nold help\n\n## other\n\nentered manually\n"
TODAY = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)


def test_one_section_is_renewed_and_the_others_stay() -> None:
    renewed_page = results.renew_page(PAGE, {"help": "new help"}, ["catalog", "help"])
    assert renewed_page == PAGE.replace("old help", "new help")
    page_with_catalog = results.renew_page(renewed_page, {"catalog": "first"}, ["catalog", "help"])
    assert list(results.sections(page_with_catalog)[1]) == ["catalog", "help", "other"]
    assert results.renew_page(page_with_catalog, {}, ["catalog", "help"]) == page_with_catalog


def test_the_page_is_laid_out_as_the_command_lays_it_out() -> None:
    text = results.FILE.read_text(encoding="utf-8")
    assert results.renew_page(text, {}, list(bench.MODULES)) == text
    for name, section in results.sections(text)[1].items():
        first_line = section.splitlines()[0]
        assert first_line.startswith("`"), name
        assert "commit" in first_line, name


def test_a_section_says_its_command_with_the_inputs_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENB", "somewhere")
    monkeypatch.delenv("BASELINES", raising=False)
    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    figures = (Figure("start", 1.234, "s", 1.0), Figure("objects", 3, "objects"))
    assert results.section("help", [Result("the start", figures)], TODAY) == (
        "`OPENB=DIR python -m tests.bench help`, 2026-02-28, commit abc1234.\n\n"
        "### the start\n\n"
        "| Figure | Measured | Budget |\n|---|---|---|\n"
        "| start | 1.23 s | 1 s, missed |\n"
        "| objects | 3 objects |  |"
    )


@pytest.mark.parametrize(("title", "keeps"), [("measured", False), ("not run, it needs the trace", True)])
def test_what_lacks_its_input_keeps_its_last_figures(
    title: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Iterable[Result]:
        yield Result("the half that can be measured", (Figure("start", 1, "s"),))
        yield Result(title, () if keeps else (Figure("rest", 2, "s"),))

    page = tmp_path / "RESULTS.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(results, "FILE", page)
    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    monkeypatch.setattr(bench, "_results", lambda _name: run())
    assert bench.main(["results", "help"]) == 0
    text = page.read_text(encoding="utf-8")
    assert ("old help" in text) is keeps
    assert ("| rest | 2 s |" in text) is not keeps
    assert "entered manually" in text
    page.write_text("# Results\n", encoding="utf-8")
    assert bench.main(["results", "help"]) == 0
    assert "| start | 1 s |" in page.read_text(encoding="utf-8"), "a first section holds what there is"


@pytest.mark.parametrize("module", [commands, wires])
def test_without_govc_a_bench_beside_it_says_what_it_needs(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a clone in which nothing was built."""
    monkeypatch.setattr(simulators, "BINARIES", tmp_path)
    [result] = module.run()
    assert result.title.endswith("not run, it needs govc (make -C tests/peers, with Go)")
    assert result.figures == ()
