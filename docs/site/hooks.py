"""What the site does beyond mkdocs: it runs the examples of the pages, and shows files of the
repository that the pages link to.

In a checkout the pages are read as they are, so a link such as ../tgr_local/options/config.py is a
relative path. The site has a copy of each such file as plain text; a link to a folder becomes text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import executed
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTWARD = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>(?:\.\./)+[^)#\s]*)(?:#[^)]*)?\)")
LOADED = re.compile(r'<(?:script|img|iframe)[^>]* src="?https?:|<link[^>]* href="?https?:')


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if changes := executed.difference(markdown):
        raise PluginError(
            f"{page.file.src_uri}: the examples print something else now; correct the page, or "
            f"run: python docs/site/executed.py --write docs/{page.file.src_uri}\n{changes}"
        )
    markdown = re.sub(r"^(```(?:console|python)) run$", r"\1", markdown, flags=re.MULTILINE)

    def inward(link: re.Match[str]) -> str:
        folder = posixpath.dirname(f"docs/{page.file.src_uri}")
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        target = ROOT / path
        if path.startswith("docs/"):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {path}, which does not exist")
        if target.is_dir():
            return link["text"]
        copy = f"source/{path}.txt"
        if files.get_file_from_path(copy) is None:
            text = target.read_text(encoding="utf-8")
            files.append(File.generated(config, copy, content=text))
        here = posixpath.dirname(page.file.src_uri)
        return f"[{link['text']}]({posixpath.relpath(copy, here or '.')})"

    return OUTWARD.sub(inward, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load {found[0]}… from the network")
    return output
