"""Makes the manual as a static site with search: `python -m tests.make_site FOLDER`, which `make site` calls.

`python -m http.server --directory dist/site` then shows it.

The README is its first page, and its headings and lists of pages are the navigation. A page that names another one
by `gpuops help PAGE` links to it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from gpuops.cli.app import app
from gpuops.cli.first_steps.help import OPTIONS, option_table, pages

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


CSS = """.md-grid { max-width: 80rem }
td:first-child code { white-space: nowrap }
"""
"""Room for command lines of 100 characters; names of options in one piece."""


def navigation() -> list[dict[str, Any]]:
    """Return the subjects of the README's manual, each with its pages: the navigation of the site."""
    manual = README.partition("\n## The manual\n")[2]
    subjects = re.findall(r"^- ([^:\n]+): (.*)$", manual, re.MULTILINE)
    listed = {subject: re.findall(r"\]\(gpuops/manual/([\w-]+)\.md\)", links) for subject, links in subjects}
    listed["Reference"].append(OPTIONS)
    return [
        {"gpuops": "index.md"},
        *({subject: [f"{page}.md" for page in names]} for subject, names in listed.items()),
    ]


def write_sources(folder: Path) -> None:
    """Write the pages as mkdocs reads them: links lead to pages of the site, and to nothing outside of it."""
    texts = {**pages(), OPTIONS: option_table(get_command(app))}
    readme = README.replace("](gpuops/manual/", "](").replace("](tests/report/page/pictures/", "](")
    texts["index"] = re.sub(r"(?<!!)\[([^\]]+)\]\((?!\w[\w-]*\.md\))[^)]+\)", r"\1", readme)
    texts["index"] = re.sub(r"\[([^\]]+)\]\([A-Z]+\.md\)", r"\1", texts["index"])
    for name, text in texts.items():
        linked = re.sub(r"`gpuops help ([\w-]+)`", lambda match: _link(match, set(texts)), text)
        (folder / f"{name}.md").write_text(linked, encoding="utf-8")
    (folder / "site.css").write_text(CSS, encoding="utf-8")
    for picture in (ROOT / "tests" / "report" / "page" / "pictures").glob("*.png"):
        shutil.copy(picture, folder)


def _link(command: re.Match[str], names: set[str]) -> str:
    return f"[{command[0]}]({command[1]}.md)" if command[1] in names else command[0]


def make_site(folder: Path) -> None:
    """Make the site in the folder. It loads nothing from elsewhere; its search needs a web server."""
    sources = folder.with_name(f"{folder.name}-sources")
    shutil.rmtree(sources, ignore_errors=True)
    (sources / "pages").mkdir(parents=True)
    write_sources(sources / "pages")
    features = ["navigation.sections", "navigation.top", "content.code.copy", "search.highlight"]
    settings = {
        "site_name": "gpuops",
        "docs_dir": "pages",
        "site_dir": str(folder.resolve()),
        "nav": navigation(),
        "theme": {"name": "material", "font": False, "features": features},
        "plugins": ["search"],
        "use_directory_urls": False,  # pages can be read from disk too
        "extra_css": ["site.css"],
        "markdown_extensions": ["tables", "fenced_code", "sane_lists", {"toc": {"permalink": True}}],
    }
    # JSON is YAML too
    (sources / "mkdocs.yml").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(sources / "mkdocs.yml"),
    ]
    subprocess.run(build, check=True)


if __name__ == "__main__":
    make_site(Path(sys.argv[1]))
