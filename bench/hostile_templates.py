"""Chat templates that ask for more time, memory or depth than there is, and pieces to make more."""

from __future__ import annotations

import random

TEMPLATES = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% endfor %}{% endfor %}",
    "text times number": "{{ 'x' * 2000000000 }}",
    "text times number in steps": "{% set x = 'x' * 100000 %}{{ x * 100000 }}",
    "list times number": "{{ ([1] * 1000000000) | length }}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}{{ n.x }}",
    "much text": "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "indent": "{{ ('x\\n' * 100000) | indent(100000) }}",
    "batch": "{{ range(99999) | batch(1000000000, 'x') | list | length }}",
    "slice": "{{ range(99999) | slice(1000000000) | list | length }}",
    "center": "{{ 'x' | center(2000000000) }}",
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "format": "{{ '%2000000000d' | format(1) }}",
    "str.format": "{{ '{:>2000000000}'.format(1) }}",
    "tojson with indent": "{{ messages | tojson(indent=1000000000) }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "macro": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "wide macro": "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}"
    "{% endmacro %}{{ f(0) }}",
    "replace": "{{ ('x' * 30000) | replace('x', 'x' * 100000) }}",
    "deep parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "a large constant": "{% set x = 9 ** 99999999 %}x",
}  # fmt: skip

PIECES = (
    "{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", "{{-", "{% raw %}", "{% endraw %}",
    "{% for m in messages %}", "{% endfor %}", "{% if m.role == 'user' %}", "{% else %}",
    "{% elif add_generation_prompt %}", "{% endif %}", "{% set x = messages[0] %}",
    "{% macro f(a, b=1) %}", "{% endmacro %}", "{% call(x) f(1) %}", "{% filter upper %}",
    "{{ m.content }}", "{{ m['content'] | trim }}", "{{ messages[99].content }}", "{{ x.y.z }}",
    "{{ f(f) }}", "{{ tools | tojson }}", "{{ messages | tojson(indent=2) }}", "{{ none + 1 }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ -9223372036854775808 // -1 }}",
    "{{ 'a' * -1 }}", "{{ range(-5, 5, 0) }}", "{{ 'a'[5] }}", "{{ 'abc'[::-1] }}",
    "{{ 'abc'[9:2:-3] }}", "{{ [][0] }}", "{{ {}.a.b }}", "{{ messages.__class__ }}",
    "{{ ''.__class__.__mro__ }}", "{{ namespace(a=1).a }}", "{{ raise_exception('no') }}",
    "{{ strftime_now('%Q') }}", "{{ bos_token }}", "{{ eos_token }}", "<think>", "</think>",
    "<tool_call>", "<|im_start|>", "<|im_end|>", "\\0", "\0", "\xff", "ü", "𝔘", "'", '"', "\n",
    "{{ '%s%n' % 1 }}", "{{ 'x'.split('') }}", "{{ loop.index }}", "{% break %}", "{% continue %}",
    "{% include 'a' %}", "{% import '/etc/passwd' as p %}", "{% extends x %}", "{% generation %}",
)  # fmt: skip


def template(draw: random.Random) -> str:
    """One of the hostile ones, or pieces of templates in a random order."""
    if draw.random() < 0.3:
        return draw.choice(list(TEMPLATES.values()))
    return "".join(draw.choices(PIECES, k=draw.choice([1, 2, 3, 5, 8, 20, 60])))
