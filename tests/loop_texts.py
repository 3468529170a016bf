"""Texts that repeat themselves as they should, and texts that go round in a loop."""

from __future__ import annotations

_CARD = """  <div class="card">
    <img src="placeholder.jpg" alt="Product image">
    <h3 class="card-title">Product Name</h3>
    <p class="card-text">Lorem ipsum dolor sit amet, consectetur adipiscing elit.</p>
    <a href="#" class="btn btn-primary">Buy now</a>
  </div>
"""
_OBJECT = """  {
    "id": 0,
    "name": "Test User",
    "email": "test@example.com",
    "active": true,
    "tags": ["a", "b"]
  },
"""
_SONG = """Row, row, row your boat,
Gently down the stream.
Merrily, merrily, merrily, merrily,
Life is but a dream.

"""
_WORKER = "- name: worker\n  image: nginx:latest\n  restart: always\n  replicas: 3\n"
_ASSEMBLY = "mov eax, ebx\nadd eax, ecx\nsub edx, eax\nshl ecx, 1\ndec esi\ninc edi\n"
_USER = '{{"id": {0}, "name": "User {0}", "email": "user{0}@example.com", "active": true}},\n'
_TEST = "def test_{0}():\n    assert square({0}) == {1}\n\n"
_BOTTLES = "{0} bottles of beer on the wall. Take one down and pass it around, {1} bottles.\n\n"
_WEEK = "Day 1: Chest\nDay 2: Back\nDay 3: Rest\nDay 4: Legs\nDay 5: Arms\nDay 6: Rest\n"
_GRID = "+---+---+---+---+---+---+---+---+\n|   |   |   |   |   |   |   |   |\n"
_CLAUSES = "| True | False | True | False | to be determined later by the whole team |\n"

HONEST = {
    "numbers, a line each": "".join(f"{i}\n" for i in range(1, 2000)),
    "numbers in one line": ", ".join(map(str, range(1000))),
    "rows with a number": "".join(f"| {i} | 0 | 0 | 0 |\n" for i in range(400)),
    "equal rows": "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 60,
    "equal rows of words": "| A | B | C | D | Note |\n|---|---|---|---|---|\n" + _CLAUSES * 24,
    "empty rows": "| Name | Value | Note |\n|---|---|---|\n" + "|      |       |      |\n" * 40,
    "a list of zeros": "x = [" + "0, " * 300 + "0]\n",
    "a matrix of zeros": "[\n" + ("    [" + "0, " * 27 + "0],\n") * 28 + "]",
    "a rule": "-" * 800,
    "laughter": "ha" * 250,
    "closing braces": "    }\n" * 100,
    "cases": "".join(f"    case {i}:\n        return {i};\n" for i in range(300)),
    "tests": "".join(_TEST.format(i, i * i) for i in range(60)),
    "cards of a page": "```html\n<body>\n" + _CARD * 12 + "</body>\n```",
    "cards without a fence": _CARD * 12,
    "equal objects": "[\n" + _OBJECT * 20 + "]",
    "test data": "[\n" + "".join(_USER.format(i) for i in range(100)) + "]",
    "equal entries": "```yaml\n" + _WORKER * 12 + "```",
    "equal entries without a fence": _WORKER * 12,
    "equal records": "name,age,city\n" + "John Doe,30,New York\n" * 60,
    "equal inserts": "INSERT INTO users (name, age) VALUES ('John Doe', 30);\n" * 40,
    "a drawing": _GRID * 8,
    "a board": ". . . . . . . .\n" * 8,
    "a dump": "00000000: 0000 0000 0000 0000 0000 0000 0000 0000  ................\n" * 16,
    "a log": "2024-01-01 12:00:00 INFO worker started and is waiting for jobs\n" * 20,
    "figures": '<rect x="0" y="0" width="10" height="10" fill="black"/>\n' * 24,
    "unrolled code": "```asm\n" + _ASSEMBLY * 12 + "```",
    "equal statements": "    for i in range(n):\n        total = total + a\n" * 12,
    "a round": _SONG * 4,
    "a refrain": "Na, na na na-na-na na, na-na-na na, hey you.\n" * 18,
    "counted stanzas": "".join(_BOTTLES.format(i, i - 1) for i in range(99, 50, -1)),
    "a punishment": "I will not talk in class.\n" * 80,
    "a plan of weeks": _WEEK * 8,
    "equal items": "".join(f"{i}. Placeholder\n" for i in range(1, 150)),
    "items of zeros": "".join(f"{i}. 0\n" for i in range(1, 250)),
}

_PARAGRAPH = (
    "The new system is flexible, so that it can be used in many different situations, and it is "
    "easy to learn for people who have never worked with such a tool before. It also has a number "
    "of features that make it possible to adapt it to the needs of each team, such as the "
    "calendar, the list of tasks, the shared notes and the reports, which are sent every week by "
    "mail to all of the members of the team, wherever they live and work at that time.\n\n"
)
_TIPS = (
    "Keep the kitchen clean and dry at all times.",
    "Check the temperature of the fridge every morning.",
    "Write down what was delivered and by whom.",
)
_RULE = "Keep the floor of the kitchen clean and dry at all times, so that nobody slips and falls "
_RULE += "down on it with a hot pan or a sharp knife in one hand"
_CHECK = "So, the number of apples is 5 * 3 = 15. Let us check it once more: it is right again.\n"
_FRUITS = "- Apples\n- Bananas\n- Cherries\n- Dates\n- Figs\n- Grapes\n- Kiwis\n"
_FRUITS += "- Lemons\n- Mangos\n- Nuts\n"
_FUNCTION = """def add(a, b):
    if a is None or b is None:
        raise ValueError("one of the two numbers that are to be added is missing")
    return a + b


"""

LOOPS = {
    "a paragraph": ("Here it is.\n\n" + _PARAGRAPH * 32, 1024),
    "a sentence": ("The answer is 42. " * 400, 2048),
    "a character": ("a " * 2000, 2048),
    "a tag": ("<br>\n" * 1000, 2048),
    "a check": (_CHECK * 60, 1024),
    "a list": ("Fruits:\n" + _FRUITS * 60, 1024),
    "a list of sentences": ("Tips:\n" + "".join(f"- {tip}\n" for tip in _TIPS) * 40, 1024),
    "numbered items": ("".join(f"{i}. {_RULE}.\n" for i in range(1, 200)), 1024),
    "numbered rounds": ("".join(f"{i}. {_TIPS[i % 3]}\n" for i in range(200)), 1024),
    "a function": ("```python\n" + _FUNCTION * 60, 2048),
}
"""A text, and the token until which it is seen to be a loop, for chunks of 512 tokens."""
