"""What mkdocs needs to know about this repository: pages that lie at its root, and links between all of them.

README, CHANGELOG, SECURITY and CONTRIBUTING are where GitHub and readers of a clone look for them. Here they
become pages of the site too. A link is written once, as it works in the repository; on the site it leads to
the same page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages at the root of the repository, and what they are called on the site."""

COPIED = ("CITATION.cff", "LICENSE", "results/index.json")
"""Other files at the root that pages link to; the site holds them under the same path."""

LINK = re.compile(r"(\]\()([^)\s#]+)")
EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^ +\S.*\n?)*)+", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies outside docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for source in COPIED:
        files.append(File.generated(config, source, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links of the repository into links of the site."""
    at_root = {name: source for source, name in PAGES.items()}.get(page.file.src_uri)
    folder = "" if at_root else "docs"
    return LINK.sub(lambda found: found[1] + target(found[2], folder), markdown)


def target(link: str, folder: str) -> str:
    """Where a link of a page in `folder` of the repository leads on the site.

    >>> target("docs/privacy.md", ""), target("../README.md", "docs"), target("img/a.svg", "docs")
    ('privacy.md', 'index.md', 'img/a.svg')
    >>> target("../results/index.json", "docs"), target("https://example.org/docs/", "")
    ('results/index.json', 'https://example.org/docs/')
    """
    if "://" in link or link.startswith("mailto:"):
        return link
    path = posixpath.normpath(posixpath.join(folder, link))
    return PAGES.get(path) or path.removeprefix("docs/")


class Examples(griffe.Extension):
    """Examples in docstrings, which run as tests, are shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Puts a fence around each example of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """`text` with its examples as blocks of code.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()
