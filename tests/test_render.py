"""/render: Markdown becomes the right HTML, and no reply becomes anything that acts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nh3", reason="the server's packages are absent")

from hostile_replies import HOSTILE
from markdown_it import MarkdownIt
from serving import Served, served

from tgr_local.apis.validation import RequestError
from tgr_local.engine import Cancel
from tgr_local.server import markup
from tgr_local.server.page_files import TEXT_MOST, RenderRequest, render
from tgr_local.system import confined

TEXT_TAGS = {
    "p", "span", "pre", "code", "strong", "em", "s", "a", "ul", "ol", "li", "blockquote", "h3",
    "h4", "h5", "h6", "hr", "br", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {"href", "target", "rel", "start", "class", "data-language"}
FORBIDDEN = {"annotation-xml", "semantics", "maction", "mglyph", "malignmark"}


def blocks(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(render(RenderRequest(text=text), Cancel()))["blocks"]
    return found


def html(text: str) -> str:
    return "".join(block["html"] for block in blocks(text))


class Reader(HTMLParser):
    """Collects the elements, their attributes and the text of some HTML."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data


# ---- what becomes of Markdown ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**a** *b* ~~c~~ `d`", "<strong>a</strong> <em>b</em> <s>c</s> <code>d</code>"),
        ("one\ntwo", "<p>one<br>\ntwo</p>"),
        ("# Title", "<h3>Title</h3>"),
        ("2. x", '<ol start="2">'),
        ("- [x] done\n- [ ] open", "<li>☑ done</li>\n<li>☐ open</li>"),
        ("|a|b|\n|:-|-:|\n|1|2|", '<td class="to-left">1</td>\n<td class="to-right">2</td>'),
        ("```python\nif x:\n```", '<pre data-language="python"><code><span class="hl-k">if</span>'),
        ("```nothing\nif x < 1:\n```", "<pre><code>if x &lt; 1:\n</code></pre>"),
        ("[a](https://b.c/?d=1&e=2)", '<a href="https://b.c/?d=1&amp;e=2" target="_blank"'),
        ("![a](https://b.c/d.png)", ">a</a>"),
        ("$x^2$", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("\\(x < y\\)", "<mi>x</mi><mo>&lt;</mo><mi>y</mi>"),
        ("so \\[ x \\] holds", '<span class="math"><math display="block">'),
        ("\\[\nx\n=\ny\n\\]", "<mi>x</mi><mo>=</mo><mi>y</mi>"),
        ("$$\n\\sum_{i=1}^n i\n$$", "<mo>∑</mo>"),
        ("\\begin{align}\na &= b\n\\end{align}", "<mtable"),
        ("the answer is \\boxed{\\frac{1}{2}}.", '<menclose notation="box"><mrow><mfrac>'),
        ("it costs $5 or $6", "it costs $5 or $6"),
        ("an open \\boxed{12", "boxed{12"),
        ("a \\( b", "a ( b"),
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
    ],
)
def test_markdown_becomes_html(text: str, expected: str):
    assert expected in html(text)


def test_blocks_begin_at_their_lines():
    text = "# a\n\nb\nc\n\n- d\n\n  e\n\n```\nf\n\n```\n\\[\nx\n\\]\n\n| g |\n|---|\n| h |"
    made = blocks(text)
    assert [block["line"] for block in made] == [0, 2, 5, 9, 13, 17]
    # the page makes only the last block again: the others are the same without it
    lines = text.split("\n")
    for i, block in enumerate(made):
        rest = blocks("\n".join(lines[block["line"] :]))
        assert [one["html"] for one in rest] == [one["html"] for one in made[i:]]


@pytest.mark.parametrize("source", ["\\left( x", "x^2^2^2", "\\frac{1}{2" + "2" * 5000])
def test_a_formula_that_fails_is_shown_as_its_source(source: str):
    made = html(f"${source}$ and $y$")
    assert f"<code>{source}</code>" in made and "<mi>y</mi>" in made


def test_the_time_for_extras_is_bounded(monkeypatch):
    """Code whose colours take too long is shown without them, and the rest as ever."""
    for seconds, coloured in ((60.0, True), (0.0, False)):
        monkeypatch.setattr(markup, "EXTRA_SECONDS", seconds)
        made = markup.render("```perl\n" + "<<A " * 20 + "\n```\n\n*b*")
        assert "<pre" in made and "<em>b</em>" in made and ("hl-" in made) == coloured


def test_a_text_that_takes_too_much_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(confined, "WALL_SECONDS", 0.1)  # of the three that it takes
        with pytest.raises(RequestError, match="show it as it is"):
            html("[" * TEXT_MOST)
    assert html("fine") == "<p>fine</p>\n"


# ---- hostile replies ----


def check(source: str) -> None:
    """No element, attribute or address that acts."""
    read = Reader(source)
    for tag, attributes in read.elements:
        math = tag[0] == "m" or tag == "none"
        assert tag in TEXT_TAGS or (math and tag not in FORBIDDEN), tag
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("style", "src", "srcdoc", "id"), name
            assert math or name in ATTRIBUTES, name
            if name == "href":
                assert tag == "a" and re.match(r"(https?://|mailto:)", value), value
                assert attributes["rel"] == "noopener noreferrer nofollow"
            elif name == "class":
                assert re.fullmatch(r"math|to-\w+|(hl-\w+ ?)+", value), value
            elif name not in ("target", "rel"):
                assert re.fullmatch(r"[\w.+#%* -]*", value), (name, value)


def test_there_are_as_many_hostile_replies_as_the_page_says():
    assert len(set(HOSTILE)) == len(HOSTILE) == 50  # docs/page.md


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_reply_does_nothing(text: str):
    try:
        source = html(text)
    except RequestError:  # too much of it: the page shows the text as it is
        return
    check(source)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_the_second_wall_holds_alone(text: str):
    """A parser that lets everything through: the sanitizer still removes it."""
    parser = MarkdownIt("commonmark", {"html": True})
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    check(markup.sanitized(parser.render(text)))
    check(markup.sanitized(text))


# ---- the endpoint ----


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    with served(model(), tmp_path_factory.mktemp("render"), api_key="secret") as running:
        yield running


def test_render_needs_the_key_and_bounds_its_text(server: Served):
    post = server.client.post
    assert post("/render", json={"text": "*a*"}).status_code == 401
    server.client.headers["Authorization"] = "Bearer secret"
    made = post("/render", json={"text": "*a*"})
    assert made.json() == {"blocks": [{"line": 0, "html": "<p><em>a</em></p>\n"}]}
    for body in ({"text": "x" * (TEXT_MOST + 1)}, {}, {"text": 1}, {"text": "a", "html": True}):
        refused = post("/render", json=body)
        assert refused.status_code == 400, body
    assert post("/render", content=b'{"text": "half \\ud83d a pair"}').status_code == 400


def test_the_page_needs_no_key_and_loads_nothing_from_elsewhere(server: Served):
    del server.client.headers["Authorization"]
    page = server.client.get("/")
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(files) >= 5 and all(name.startswith("page/") for name in files)
    seen, left = {"/": page}, files
    while left:
        name = left.pop()
        if f"/{name}" in seen:
            continue
        file = seen[f"/{name}"] = server.client.get(f"/{name}")
        assert file.status_code == 200, name
        left += [f"page/{one}" for one in re.findall(r'from "\./([^"]+)"', file.text)]
    for name, file in seen.items():
        policy = file.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, name
        assert file.headers["x-content-type-options"] == "nosniff"
        assert "://" not in file.text.replace("http://www.w3.org/2000/svg", ""), name
        tag = {"If-None-Match": file.headers["etag"]}
        assert server.client.get(name, headers=tag).status_code == 304
    assert not re.search(r"<[^>]*\s(on\w+|style)=", page.text)
    assert server.client.get("/page/../app.py").status_code in (401, 404)
    assert server.client.get("/docs").status_code in (401, 404)
