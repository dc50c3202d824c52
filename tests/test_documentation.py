"""The pages hang together: on GitHub, as a site, and with what the package offers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import sottovoce
from sottovoce.plan.catalog import CHANNELS, CONTEXTS, METHODS
from sottovoce.release.once.context import open_statistic

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:[\w.-]+/)+\w+\.py)`")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere_in_the_repository(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_or_test_that_a_page_names_is_there(page: Path) -> None:
    roots = (ROOT, ROOT / "src", ROOT / "src" / "sottovoce")
    named = [file for file in FILE.findall(prose(page)) if "/x/" not in file]  # x is any package
    assert [file for file in named if not any((root / file).exists() for root in roots)] == []


def test_the_reference_shows_every_name_that_the_package_offers() -> None:
    shown = re.findall(r"^::: ([\w.]+)", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"sottovoce.{name}" for name in sottovoce.__all__} <= set(shown)


def test_the_reference_names_members_that_are_there() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for path, members in re.findall(
        r"^::: ([\w.]+)(?:\n    options:\n      members: \[(.*)\])?", text, re.MULTILINE
    ):
        module, _, name = path.rpartition(".")
        found = getattr(import_module(module), name)
        for member in filter(None, members.split(", ")):
            assert hasattr(found, member), f"{path}.{member}"


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table of a page whose first column is headed so."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    body = re.search(rf"^\| {re.escape(head)} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert body is not None, head
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in body[1].splitlines()]


def test_the_page_of_the_method_has_every_context_with_what_is_charged_for_it() -> None:
    rows = {row[0].strip("` "): row for row in table("method.md", "`context=`")}
    assert rows.keys() == CONTEXTS.keys()
    for name, (_, _, sensitivity, labels) in rows.items():
        traits = CONTEXTS[name]
        assert ("yes" in labels) == (traits.uses_labels and not traits.predicted_for_future), name
        if traits.released:
            bound = open_statistic(name, (1, 4, 4), 10).sensitivity(100)
            assert sensitivity == "√2/m_c", name
            assert bound == pytest.approx(2**0.5 / 100), name


def test_pages_have_every_method_and_every_channel() -> None:
    assert {row[0].strip("` ") for row in table("method.md", "`method=`")} == METHODS.keys()
    assert {row[0].strip("` ") for row in table("channel.md", "name")} == CHANNELS.keys()


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # news of the theme's authors
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES) - 1
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?((?:https?:)?//[^\s\"'>]+)")
    linked = re.compile(r"<link[^>]*\shref=[\"']?((?:https?:)?//[^\s\"'>]+)")
    styled = re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\s\"')]+)")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not loaded.findall(text) + linked.findall(text), page
    for style in (tmp_path / "site").rglob("*.css"):
        assert not styled.findall(style.read_text(encoding="utf-8")), style


def test_one_version_is_stated_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert newest is not None
    assert project == cited[1] == newest[1] == sottovoce.__version__
