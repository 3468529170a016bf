"""Finds the final answer in a text, and normalises it so that equal answers are equal strings.

Text in, text out. Votes compare the `answer_key` of texts. It removes differences of notation
(boxes, dollar signs, layout) and does not compute values, so ``1/2`` and ``0.5`` are two answers.
"""

from __future__ import annotations

import re

from tgr_local.system.think_tags import CLOSE_THINK

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?"
_LAST_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER}")
_LISTED = re.compile(r"^\W*\d+[.):](?:\s|$)")
"""The number of a line in a list."""
_ANSWER_PHRASE = re.compile(r"\banswer\s*(?:is\b|was\b|:|=)\s*:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;!?](?=\s|$)|[\n]|,(?=\s)")
_SPACES = re.compile(r"\s*")
_THOUSANDS = re.compile(r"(?<![\w.,])(\d{1,3}(?:[, ]\d{3})+)(?!,?\d)")
"""A number in groups of three digits; in brackets, ``(1,000)`` may also be a pair."""
SIGNED = re.compile(r"(?<![\w)}\]-])[-−](\\(?:boxed|fbox)\s*\{)")
"""A box after a minus sign that belongs to its content."""
_WORDS = r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf)|mbox|emph|underline|boldsymbol)\s*"
WORDS = re.compile(rf"{_WORDS}\{{[^{{}}]*\}}")
_WRAPPER = re.compile(rf"(?:{_WORDS}|\\(?:boxed|fbox)\s*)(?=\{{)")
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])")
_LAYOUT = re.compile(
    r"(?<!\\)\\[,;: ]|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|quad|qquad)(?![A-Za-z])|~"
)
_BOLD = re.compile(r"^\s*\*\*|(?<![\w)])\*\*(?=\S)|(?<=\S)\*\*(?![\w(])")
_DEGREES = re.compile(r"°|\^\s*\\circ(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\\degree(?![A-Za-z])")
_SIGNS = {"*": r"[×·⋅∗∙]|\\(?:times|cdot|ast)(?![A-Za-z])", "/": r"[÷∕⁄]|\\div(?![A-Za-z])",
          "-": r"[−–]"}  # fmt: skip
_NOTHING = re.compile(r"\\[()\[\]$!]|[$`]")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_NAME, _POWER = re.compile(r"-?[\w.]+"), re.compile(r"\s*\^")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_NESTED_MOST = 50  # fractions within each other that are read
_MIXED = re.compile(r"(?<=\d) (?=\d+/\d)")
_VARIABLE = re.compile(r"^[A-Za-z]=(?=.)")
_UNIT = re.compile(r"(-?[\d.]+)[a-z]{2,}")


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{…}`` or ``\fbox{…}``, with a minus sign from
    directly before the box; None if there is no box."""
    text = SIGNED.sub(r"\1-", text)
    ends = _closings(text)
    for opening in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        if end := ends.get(opening.end() - 1):
            return text[opening.end() : end].strip()
    return None


def answer_key(text: str) -> str | None:
    """The normalised final answer of a text: the last box, else the text after the last
    "answer is" or "answer:", else the last number. A number loses its unit. None if the text has
    none of these. Of a text that ends with a fenced code block and has neither a box nor such words
    before it, that code is the answer; its key is its lines, without blank ones and spaces at their
    ends."""
    if final := _final_code(text):
        prose, code = final
        if boxed(prose) is None and not _ANSWER_PHRASE.search(prose):
            return code or None
    inside = boxed(text)
    if inside is not None:
        return _without_unit(normalised(inside)) or None
    for phrase in reversed(list(_ANSWER_PHRASE.finditer(text))):
        begin = _SPACES.match(text, phrase.end()).end()  # type: ignore[union-attr]  # it matches
        end = _SENTENCE_END.search(text, begin)
        if key := normalised(text[begin : end.start() if end else len(text)]):
            return _without_unit(key)
    numbers = _LAST_NUMBER.findall(re.sub(_SIGNS["-"], "-", text))
    return normalised(numbers[-1]) if numbers else None


def is_comparable(text: str) -> bool:
    """Whether a text ends like one whose answer others can give too: a box, "answer is", a code
    block, or a number within its last two lines that is more than the number of a line. Of free
    text every sample is another one, and a number somewhere in it decides nothing."""
    text = text.rpartition(CLOSE_THINK)[2]
    if answer_key(text) is None:
        return False
    if _final_code(text) or boxed(text) is not None or _ANSWER_PHRASE.search(text):
        return True
    lines = [line for line in text.splitlines() if line.strip()]
    return any(_LAST_NUMBER.search(_LISTED.sub("", line)) for line in lines[-2:])


def cleaned(answer: str) -> str:
    r"""An answer as plain text with single spaces: without LaTeX wrappers of words, dollar signs,
    layout, bold and degree signs; with the signs + - * /, and a/b for ``\frac{a}{b}``."""
    answer = _NOTHING.sub("", answer.replace("{,}", ",").replace(r"\%", "%"))
    for plain, written in _SIGNS.items():
        answer = re.sub(written, plain, answer)
    answer = _BOLD.sub("", _DEGREES.sub("", _LAYOUT.sub(" ", answer)))
    return " ".join(_fractions(_unwrapped(answer))[0].rstrip("\\ \n").split())


def compact(answer: str) -> str:
    """An answer, cleaned, without spaces, outer braces and outer punctuation."""
    answer = "".join(_MIXED.sub("+", cleaned(answer)).split())
    answer = answer.lstrip(",;:!").rstrip(".,;:")
    braces = re.fullmatch(r"\{([^{}]*)\}", answer)
    return braces[1] if braces else answer


def ungrouped(text: str) -> str:
    """A cleaned text with the thousands commas and spaces of its numbers removed."""
    return _THOUSANDS.sub(lambda number: re.sub("[, ]", "", number[0]), text)


def normalised(answer: str) -> str:
    """An answer as votes compare it: compact, in lower case, without ``x=`` before it. Numbers
    lose thousands commas, a plus sign, and leading and trailing zeros."""
    answer = cleaned(answer)
    answer = compact(answer if re.search(r"[(\[]", answer) else ungrouped(answer))
    return _plain_number(_VARIABLE.sub("", answer)).lower()


def _final_code(text: str) -> tuple[str, str] | None:
    """Splits an answer into the text before its final fenced code block and the block's lines;
    None without one. Thinking is not part of an answer."""
    lines = text.rpartition(CLOSE_THINK)[2].rstrip().splitlines()
    begin, fence = -1, ""  # of the block that is open
    for i, line in enumerate(lines):
        match = _FENCE.match(line)
        if match and not fence:
            begin, fence = i, match[1]
        elif match and match[1].startswith(fence) and not match[2].strip():
            if i == len(lines) - 1:
                code = (line.rstrip() for line in lines[begin + 1 : i])
                return "\n".join(lines[:begin]), "\n".join(line for line in code if line)
            fence = ""
    return None


def _closings(text: str) -> dict[int, int]:
    """The index of the brace that closes each one that is closed; escaped braces do not count."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing


def _group(text: str, at: int, ends: dict[int, int]) -> tuple[slice, int] | None:
    """Slice of the LaTeX argument at index `at`, a ``{group}`` or one character, and the index
    after it."""
    while text[at : at + 1].isspace():
        at += 1
    if at >= len(text):
        return None
    if text[at] != "{":
        return slice(at, at + 1), at + 1
    return (slice(at + 1, ends[at]), ends[at] + 1) if at in ends else None


def _unwrapped(text: str) -> str:
    ends = _closings(text)
    left_out: list[tuple[int, int]] = []
    for wrapper in _WRAPPER.finditer(text):
        if wrapper.end() not in ends:
            break
        end = ends[wrapper.end()]
        left_out += [(wrapper.start(), wrapper.end() + 1), (end, end + 1)]
    pieces, at = [], 0
    for start, end in sorted(left_out):
        pieces.append(text[at:start])
        at = end
    return "".join([*pieces, text[at:]])


def _fractions(text: str, depth: int = 0) -> tuple[str, bool]:
    """A text with a/b for each fraction, up to the first one that has no two arguments or lies too
    deep in others; and whether there is none such."""
    ends = _closings(text)
    pieces: list[str] = []
    at, is_whole = 0, True
    while is_whole and (fraction := _FRACTION.search(text, at)):
        over = _group(text, fraction.end(), ends)
        under = _group(text, over[1], ends) if over else None
        if over is None or under is None or depth == _NESTED_MOST:
            return "".join([*pieces, text[at:]]), False
        parts = []
        for where, _ in (over, under):
            part = text[where].strip()
            has_bracket = not _NAME.fullmatch(part)
            if is_whole:
                part, is_whole = _fractions(part, depth + 1)
            parts.append(f"({part})" if has_bracket else part)
        both = "/".join(parts)
        head = text[at : fraction.start()].rstrip()
        at = under[1]
        if head.endswith(("/", "^")) or _POWER.match(text, at):
            both = f"({both})"
        pieces.append(f"{head} {both}")
    return "".join([*pieces, text[at:]]), is_whole


def _without_unit(key: str) -> str:
    """A key without the unit after its number; a single letter stays, it may be a variable."""
    unit = _UNIT.fullmatch(key)
    return unit[1] if unit else key


def _plain_number(answer: str) -> str:
    if not re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)", answer):
        return answer
    sign = "-" if answer.startswith("-") else ""
    whole, _, decimals = answer.lstrip("+-").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return number if number == "0" else sign + number
