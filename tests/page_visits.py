"""The page in Chromium, for `page_tasks` and the tests: a server, a browser, a visit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import HELD, Served, served
from surroundings import HANG

from tgr_local.options.model_files import embedded_model

WIDTHS = {1280: 860, 390: 844}
SEARCH = {
    "method": "tgr-latent", "chunk_len": 32, "max_chunks": 12, "n_candidates": 8, "rollout_len": 12,
    "search_from": 0,
}  # fmt: skip
QUESTION = "What is 12 + 7 * 3?"


def chromium() -> str | None:
    """The browser's program, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window. ImportError without playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        yield launched
        launched.close()


def server_of_tasks(
    folder: Path, model: Path | None = None, **options: Any
) -> contextlib.AbstractContextManager[Served]:
    """A server with a model, else the embedded one, and its own search options."""
    return served((model or embedded_model()).resolve(), folder, start=HELD, **(SEARCH | options))


def conversation_file(*replies: str, question: str = "question") -> dict[str, Any]:
    """An export with one conversation: a question before each reply."""
    nodes: dict[str, Any] = {}
    chosen, parent = {}, None
    for i, text in enumerate(replies):
        for role, own in (("user", question), ("assistant", text)):
            name = f"{role}{i}"
            nodes[name] = {"id": name, "parent": parent, "role": role, "text": own, "state": "done"}
            chosen[parent or ""] = name
            parent = name
    conversation = {"title": "imported", "system": "", "nodes": nodes, "chosen": chosen}
    return {"format": "tgr-local conversations 1", "conversations": [conversation]}


@dataclass
class Visit:
    """A tab with the page, in a browser profile of its own."""

    page: Any
    server: Served
    width: int
    images: Path | None = None
    sent: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of the chat requests."""
    faults: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Addresses of other servers that were asked."""

    @property
    def is_phone(self) -> bool:
        return self.width < 700

    def ask(self, text: str) -> None:
        self.page.fill("#question", text)
        self.page.press("#question", "Enter")

    def replies(self) -> Any:
        return self.page.locator(".message.assistant")

    def finished(self, n: int) -> str:
        """Waits until n replies are there and the last is finished; its text."""
        last = self.replies().nth(n - 1)
        last.locator(".actions .again").wait_for()
        assert self.replies().count() == n
        self.page.locator(".text[aria-busy]").first.wait_for(state="detached")  # it is drawn
        return str(last.locator(".text").inner_text())

    def list(self) -> None:
        """Opens the list of conversations, which a phone hides."""
        if self.is_phone and "with-sidebar" not in (self.page.get_attribute("body", "class") or ""):
            self.page.click("#open-sidebar")

    def load(self, file: dict[str, Any]) -> None:
        """Imports conversations and opens the first in the list."""
        data = json.dumps(file).encode()
        payload = {"name": "export.json", "mimeType": "application/json", "buffer": data}
        self.page.set_input_files("#import-file", payload)
        self.page.get_by_text("imported.").wait_for()
        self.list()
        self.page.locator("#conversations .title", has_text="imported").first.click()
        self.page.locator(".message.assistant .text > *").first.wait_for()
        self.page.locator("#toast").evaluate("(toast) => { toast.hidden = true; }")

    def picture(self, name: str) -> None:
        if self.images:
            self.page.wait_for_timeout(250)  # transitions
            self.page.screenshot(path=self.images / f"page-{name}-{self.width}.png")

    def check(self) -> None:
        """What holds after every task: nothing failed, nobody else was asked, nothing is wider
        than the window."""
        assert not self.faults, self.faults
        assert not self.elsewhere, self.elsewhere
        wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"the page is {wide} pixels too wide"


@contextlib.contextmanager
def visit(
    browser: Any, server: Served, width: int, images: Path | None = None, key: str = ""
) -> Iterator[Visit]:
    """The page of a server in a new profile of a browser."""
    context = browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        has_touch=width < 700,
        device_scale_factor=1,
        color_scheme="light",
        permissions=["clipboard-read", "clipboard-write"],
        accept_downloads=True,
    )
    page = context.new_page()
    page.set_default_timeout(1000 * HANG)
    visited = Visit(page, server, width, images)

    def asked(request: Any) -> None:
        if not request.url.startswith((server.url, "blob:")):
            visited.elsewhere.append(request.url)
        if request.url.endswith("/v1/chat/completions"):
            visited.sent.append(request.post_data_json)

    def with_seed(route: Any) -> None:
        body = route.request.post_data_json
        route.continue_(post_data=json.dumps({"seed": len(visited.sent), **body}))

    page.on("request", asked)
    page.route("**/v1/chat/completions", with_seed)  # the same replies in every run
    page.on("pageerror", lambda error: visited.faults.append(str(error)))
    page.goto(server.url)
    if not key:
        page.locator("#method option[value='markov']").wait_for(state="attached")
    yield visited
    context.close()
