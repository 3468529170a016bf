"""Markdown → HTML that is safe in a page. Runs in the process of `tgr_local.system.confined`.

In: the text of a reply, which may be hostile. Out: for every top-level block of it the line where
it begins and its HTML. markdown-it-py parses (raw HTML stays text), Pygments colours code,
latex2mathml turns LaTeX into MathML, and nh3 lets only listed elements, attributes and addresses
through. A formula or a code block that fails or takes long is shown as its source. It loads nothing
of this package.
"""

from __future__ import annotations

import contextlib
import functools
import html
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

import nh3
from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_all_lexers, get_lexer_by_name

FORMULA_MOST, CODE_MOST = 4000, 65536
"""Characters of a formula and of a code block; a longer one is shown as its source."""
EXTRA_SECONDS = 0.6
"""CPU time for the colours and formulas of one text."""
_MATH_LINES = 60  # of a formula in brackets
_CODE_CLASS = "hl-"

Env = dict[str, Any]


def render(text: str) -> str:
    """The blocks of a Markdown text, as a JSON list of objects with "line", from 0, and "html"."""
    env: Env = {"seconds": EXTRA_SECONDS}
    parser = _parser()
    tokens = parser.parse(text, env)
    blocks = []
    for block in _top_level(tokens):
        html_of_block = parser.renderer.render(block, parser.options, env)
        line = block[0].map[0] if block[0].map else 0
        blocks.append({"line": line, "html": sanitized(html_of_block)})
    return json.dumps(blocks)


def sanitized(source: str) -> str:
    """HTML without anything that acts, loads, or changes what is outside of it."""
    return _cleaner().clean(source)


def _top_level(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


# ---- Markdown ----


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("default", {"html": False, "linkify": False, "breaks": True})
    parser.use(dollarmath_plugin, allow_labels=False, allow_space=False, double_inline=True)
    parser.use(amsmath_plugin)
    ends = ["paragraph", "reference", "blockquote", "list"]  # what the block may interrupt
    parser.block.ruler.before("fence", "math_brackets", _bracket_block, {"alt": ends})
    parser.inline.ruler.before("escape", "math_brackets", _bracket_inline)
    parser.core.ruler.push("adapted", _adapt)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    parser.add_render_rule("image", _image)
    for name in ("math_inline", "math_inline_double", "math_block", "amsmath"):
        parser.add_render_rule(name, _math)
    parser.validateLink = _is_link  # type: ignore[method-assign]
    return parser


def _is_link(url: str) -> bool:
    return re.match(r"(https?://|mailto:)[^\s]", url, re.IGNORECASE) is not None


def _adapt(state: StateCore) -> None:
    """Headings below those of the page, alignment as a class, boxes of task lists."""
    for i, token in enumerate(state.tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        elif token.type in ("th_open", "td_open"):
            style = str(token.attrs.pop("style", ""))
            if aligned := style.removeprefix("text-align:"):
                token.attrSet("class", f"to-{aligned}")
        elif token.type == "inline" and token.children and _is_item(state.tokens, i):
            first = token.children[0]
            if box := re.match(r"\[([ xX])\]\s", first.content):
                first.content = ("☐ " if box[1] == " " else "☑ ") + first.content[box.end() :]


def _is_item(tokens: Sequence[Token], i: int) -> bool:
    return i >= 2 and tokens[i - 2].type == "list_item_open"


def _image(_: Any, tokens: Sequence[Token], i: int, options: Any, env: Env) -> str:
    """A link to it: the page loads nothing from elsewhere."""
    address, text = tokens[i].attrGet("src"), tokens[i].content
    return f'<a href="{html.escape(str(address))}">{html.escape(text or str(address))}</a>'


# ---- code ----


@functools.cache
def _lexer_names() -> frozenset[str]:
    """Pygments' own; a search among those of installed plugins would load them."""
    return frozenset(name for lexer in get_all_lexers(plugins=False) for name in lexer[1])


def _fence(_: Any, tokens: Sequence[Token], i: int, options: Any, env: Env) -> str:
    token = tokens[i]
    name = (token.info.split() or [""])[0].lower()
    code = html.escape(token.content)
    known = name in _lexer_names()
    if known and len(token.content) <= CODE_MOST:
        code = _bounded(env, lambda: _coloured(token.content, name), code)
    language = f' data-language="{html.escape(name)}"' if known else ""
    return f"<pre{language}><code>{code}</code></pre>\n"


def _coloured(code: str, language: str) -> str:
    lexer = get_lexer_by_name(language, stripnl=False)
    coloured: str = highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix=_CODE_CLASS))
    return coloured


# ---- formulas ----


def _bracket_block(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    r"""``\[ … \]`` on lines of its own."""
    start = state.bMarks[first] + state.tShift[first]
    if not state.src.startswith("\\[", start) or state.is_code_block(first):
        return False
    for line in range(first, min(end, first + _MATH_LINES)):
        text = state.src[state.bMarks[line] : state.eMarks[line]].rstrip()
        if line > first and (state.isEmpty(line) or state.sCount[line] < state.blkIndent):
            return False
        at = text.find("\\]", 2 + state.tShift[first] if line == first else 0)
        if at >= 0:
            break
    else:
        return False
    if at + 2 < len(text):  # more follows in this line: a formula within a paragraph
        return False
    if not silent:
        token = state.push("math_block", "math", 0)
        token.block, token.map = True, [first, line + 1]
        source = state.getLines(first, line + 1, state.sCount[first], False).strip()
        token.content = source.removeprefix("\\[").removesuffix("\\]")
    state.line = line + 1
    return True


def _bracket_inline(state: StateInline, silent: bool) -> bool:
    r"""``\( … \)``, ``\[ … \]`` and ``\boxed{…}`` in a paragraph."""
    source, at = state.src, state.pos
    if source[at] != "\\":
        return False
    opening = source[at : at + 2]
    if opening in ("\\(", "\\["):
        end = source.find("\\)" if opening == "\\(" else "\\]", at + 2, at + FORMULA_MOST)
        formula, after = source[at + 2 : end], end + 2
    else:
        end = after = _end_of_box(source, at)
        formula = source[at:end]
    if end < 0 or not formula.strip():
        return False
    if not silent:
        kind = "math_inline_double" if opening == "\\[" else "math_inline"
        state.push(kind, "math", 0).content = formula
    state.pos = after
    return True


def _end_of_box(source: str, at: int) -> int:
    r"""The position after ``\boxed{…}``; -1 if there is none, or its braces are not closed."""
    if not source.startswith("\\boxed{", at):
        return -1
    depth = 0
    for i in range(at + 6, min(len(source), at + FORMULA_MOST)):
        depth += {"{": 1, "}": -1}.get(source[i], 0)
        if not depth:
            return i + 1
    return -1


def _math(_: Any, tokens: Sequence[Token], i: int, options: Any, env: Env) -> str:
    token = tokens[i]
    source, is_block = token.content.strip(), token.type != "math_inline"
    markup = f"<code>{html.escape(source)}</code>"
    if len(source) <= FORMULA_MOST:
        display = "block" if is_block else "inline"
        markup = _bounded(env, lambda: _mathml(source, display), markup)
    return f'<span class="math">{markup}</span>' if is_block else markup


def _mathml(source: str, display: str) -> str:
    element = convert_to_element(source, display=display)
    for part in element.iter():
        # its texts hold references such as &#x2211; as well as what the author wrote, and its own
        # serializer writes both without escaping
        part.text = html.unescape(part.text) if part.text else part.text
        part.tail = html.unescape(part.tail) if part.tail else part.tail
    return ElementTree.tostring(element, encoding="unicode")


def _bounded(env: Env, make: Callable[[], str], otherwise: str) -> str:
    """Returns `make()`; `otherwise` if that fails, or uses up the time for such extras."""
    if env["seconds"] <= 0:
        return otherwise
    try:
        with _timer(env):
            return make()
    except Exception:  # foreign code may raise anything, TimeoutError and MemoryError too
        return otherwise


@contextlib.contextmanager
def _timer(env: Env) -> Iterator[None]:
    """Raises TimeoutError in the block after ``env["seconds"]`` of CPU time, and subtracts what it
    took. Only a main thread has this timer, and Windows has none; there, and in a frozen program,
    the block is free."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGVTALRM, _late)
    signal.setitimer(signal.ITIMER_VIRTUAL, env["seconds"])
    try:
        yield
    finally:
        env["seconds"] = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]


def _late(*_: object) -> None:
    raise TimeoutError("takes too long")


# ---- what may be in the HTML ----

_TEXT = (
    "p span pre code strong em s a ul ol li blockquote h3 h4 h5 h6 hr br table thead tbody tr th td"
)
_MATH = (
    "math mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover "
    "munderover mmultiscripts mprescripts none mtable mtr mlabeledtr mtd menclose mstyle mpadded "
    "mphantom"
)
_LENGTH, _WORD = r"[+-]?\d{0,2}(\.\d{1,6})?(em|ex|px|pt|%)?", r"[a-zA-Z-]{1,24}"
_ATTRIBUTES = {
    "href": r"(?s).{1,4096}",  # its scheme is checked by nh3
    "start": r"\d{1,9}",
    "class": rf"math|to-(left|center|right)|({_CODE_CLASS}[a-z0-9]+ ?)+",
    "data-language": r"[a-z0-9+#.*_-]{1,32}",
    "notation": rf"{_WORD}( {_WORD})*",
    "mathcolor": rf"{_WORD}|#[0-9a-fA-F]{{3,6}}",
    "scriptlevel": r"[+-]?\d",
    "columnalign columnlines rowlines": rf"{_WORD}( {_WORD})*",
    "width height depth lspace rspace voffset minsize maxsize linethickness columnspacing "
    "rowspacing": _LENGTH,
    "display displaystyle mathvariant stretchy fence form accent accentunder separator "
    "movablelimits largeop symmetric": _WORD,
}
_VALUES = {name: value for names, value in _ATTRIBUTES.items() for name in names.split()}
_HTML_ATTRIBUTES = {
    "a": {"href"},
    "ol": {"start"},
    "pre": {"data-language"},
    **{name: {"class"} for name in ("span", "th", "td")},
}


@functools.cache
def _cleaner() -> nh3.Cleaner:
    of_math = set(_VALUES) - {"href", "start", "class", "data-language"}
    return nh3.Cleaner(
        tags={*_TEXT.split(), *_MATH.split()},
        attributes={**_HTML_ATTRIBUTES, **{name: of_math for name in _MATH.split()}},
        attribute_filter=_checked_value,
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
    )


def _checked_value(_: str, attribute: str, value: str) -> str | None:
    pattern = _VALUES.get(attribute, r"_blank|noopener noreferrer nofollow")
    return value if re.fullmatch(pattern, value) else None
