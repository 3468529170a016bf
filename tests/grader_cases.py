"""Cases of the graders: official rows, replies that are correct, replies that are wrong."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

Rows = list[dict[str, Any]]

LITE = base64.b64encode(
    zlib.compress(pickle.dumps(json.dumps([{"input": "5 5", "output": "10", "testtype": "stdin"}])))
).decode()

CONTEST = {
    "question_title": "Sum",
    "question_content": "Add two numbers.",
    "platform": "atcoder",
    "question_id": "abc_a",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": '[{"input": "1 2\\n", "output": "3\\n", "testtype": "stdin"}]',
    "private_test_cases": LITE,
    "metadata": "{}",
}

METHOD = CONTEST | {
    "question_id": "3000",
    "starter_code": "class Solution:\n    def pair(self, a: int, b: List[int]) -> List[int]:\n",
    "public_test_cases": '[{"input": "1\\n[2, 3]", "output": "[1, 2, 3]"}]',
    "private_test_cases": "[]",
    "metadata": '{"func_name": "pair"}',
}

WRITING = {
    "index": 7,
    "domain1": "Literature & Arts",
    "domain2": "Poem",
    "lang": "en",
    "query": "Write a poem on rain.",
    "checklist": [{"name": "Form", "criteria_description": "It rhymes."}, {"name": "Theme"}],
}

OLYMPIAD = {
    "id": 1606,
    "context": None,
    "question": "Find all $x$.",
    "final_answer": ["$1$,$2$"],
    "is_multiple_answer": True,
    "unit": None,
    "error": None,
}


CASES: dict[str, tuple[Rows, list[str], list[str]]] = {
    "math500": (
        [{"problem": "Half of 1?", "answer": "\\frac{1}{2}", "unique_id": "test/a/1.json"}],
        [r"So $\boxed{\frac{1}{2}}$.", r"\boxed{0.5}", r"no, \boxed{\dfrac12}", "It is 1/2."],
        [r"\boxed{\frac{1}{3}}", r"first \boxed{\frac12}, but \boxed{2}", r"\boxed{}", "none"],
    ),
    "aime24": (
        [{"id": 60, "problem": "Count.", "answer": "033", "url": "x", "year": "2024"}],
        [r"\boxed{33}", r"\boxed{033}"],
        [r"\boxed{34}"],
    ),
    "aime25": (
        [{"problem": "Count.", "answer": 70, "id": "0"}],
        [r"\boxed{70}", r"The answer is $\boxed{070}$."],
        [r"\boxed{7}"],
    ),
    "omnimath": (
        [{"problem": "How many?", "answer": "30(1 + \\sqrt{5})", "domain": []}],
        [r"\boxed{30 + 30\sqrt{5}}"],
        [r"\boxed{30}"],
    ),
    "olympiadbench": (
        [OLYMPIAD],
        [r"\boxed{1, 2}", r"\boxed{2,1}", r"\boxed{1} and \boxed{2}"],
        [r"\boxed{1}", r"\boxed{1, 3}"],
    ),
    "gsm8k": (
        [{"question": "Ducks?", "answer": "6*200 = <<6*200=1200>>1200\n#### 1,200"}],
        [r"\boxed{1200}", r"\boxed{\$1,200.00}", "It takes 3 days.\n#### 1200", "so 1,200 eggs."],
        [r"\boxed{1201}", "1200 or 12", "none"],
    ),
    "humaneval": (
        [
            {
                "task_id": "HumanEval/0",
                "prompt": "from typing import List\n\ndef top(x: List[int]):\n    ''' Top. '''\n",
                "entry_point": "top",
                "canonical_solution": "    return max(x)\n",
                "test": "def check(f):\n    assert f([1, 3, 2]) == 3\n",
            }
        ],
        [
            "    return max(x)\n\ndef other(): return unfinished(",
            "return max(x)",
            "Sure:\n```python\ndef top(x: List):\n    return max(x)\n```\nUse:\n```\ntop([])\n```",
            # checks of its own that are wrong, and an end that a limit cut off
            "```python\ndef top(x: List):\n    return max(x)\n\nassert top([1]) == 2\nprint(top([",
        ],
        ["    return min(x)", "```python\ndef top(x): return 3/0\n```", "I cannot."],
    ),
    "humaneval-code": (
        [
            {
                "task_id": "HumanEval/0",
                "prompt": "from typing import List\n\ndef top(x: List[int]):\n    ''' Top. '''\n",
                "entry_point": "top",
                "test": "def check(f):\n    assert f([1, 3, 2]) == 3\n",
            }
        ],
        [
            "def top(x: List):\n    return max(x)\n```\n\nUse it so:\n```python\ntop([1])\n```",
            "from typing import List\n\n\ndef top(x):\n    return max(x)\n",
        ],
        ["def top(x):\n    return min(x)\n```", "```\nI cannot."],
    ),
    "mbpp": (
        [
            {
                "text": "Write a function to double.",
                "code": "def double(x):\r\n  return 2*x",
                "task_id": 11,
                "test_setup_code": "import math",
                "test_list": ["assert double(2) == 4", "assert math.isclose(double(0.5), 1)"],
            },
            {"text": "A few-shot row.", "task_id": 2, "test_list": ["assert f(1)"]},
        ],
        ["```python\ndef double(x):\n    return 2 * x\n```", "def double(x): return x + x\n[DONE]"],
        ["```python\ndef double(x):\n    return x\n```", "x plus x"],
    ),
    "humanevalfix": (
        [
            {
                "task_id": "Python/0",
                "declaration": "from typing import List\n\n\ndef top(x: List[int]) -> int:\n",
                "buggy_solution": "    return min(x)\n",
                "canonical_solution": "    return max(x)\n",
                "entry_point": "top",
                "test": "\n\ndef check(f):\n    assert f([1, 3, 2]) == 3\n\ncheck(top)",
            }
        ],
        [
            "```python\ndef top(x):\n    return max(x)\n```",
            "The bug is `min`:\n```\ndef top(x: List[int]) -> int:\n    return sorted(x)[-1]\n```",
            "<<<<<<< SEARCH\n    return min(x)\n=======\n    return max(x)\n>>>>>>> REPLACE",
            "```python\nimport os\n\ndef top(x):\n    return math.prod([max(x)])\n```",
        ],
        [
            "```python\ndef top(x):\n    return min(x)\n```",
            "<<<<<<< SEARCH\n    return sum(x)\n=======\n    return max(x)\n>>>>>>> REPLACE",
            "```python\ndef other(x):\n    return max(x)\n```",
            "I cannot.",
        ],
    ),
    "bigcodebench": (
        [
            {
                "task_id": "BigCodeBench/1",
                "complete_prompt": "import math\n\ndef task_func(x):\n    '''Root.'''\n",
                "instruct_prompt": "Compute the root. Start with: import math",
                "canonical_solution": "    return math.sqrt(x)",
                "code_prompt": "import math\ndef task_func(x):\n",
                "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
                "    def test_one(self):\n        self.assertEqual(task_func(4), 2)\n",
                "entry_point": "task_func",
                "libs": "['math']",
            }
        ],
        ["```python\ndef task_func(x):\n    return math.sqrt(x)\n```", "    return x ** 0.5"],
        ["```python\ndef task_func(x):\n    return 3\n```", "```python\nraise SystemExit(0)\n```"],
    ),
    "livecodebench": (
        [CONTEST],
        ["```python\nprint(sum(map(int, input().split())))\n```"],
        [
            "```python\nprint(3)\n```",
            "```python\nprint(sum(map(int, input().split())), 'ok')\n```",
            "```python\n1 / 0\n```",
        ],
    ),
    "ifeval": (
        [
            {
                "key": 1000,
                "prompt": "Write without commas, in lower case.",
                "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
                "kwargs": [{}, {"relation": None}],
            }
        ],
        ["this is a plain english sentence without them"],
        ["this has, as you see, some of them in a plain english sentence", "THIS IS LOUD"],
    ),
    "countdown": (
        [{"input": "19,36,55", "output": "38"}],
        [r"\boxed{55+19-36}", "<answer>(55 - 36) + 19 = 38</answer>"],
        [r"\boxed{19+19}", r"\boxed{38}", r"\boxed{55+19-36+0}", r"\boxed{55-36}", "55+19-36"],
    ),
    "game24": (
        [{"Rank": "901", "Puzzles": "4 4 10 10"}, {"Rank": "900", "Puzzles": "1 1 1 1"}],
        [r"\boxed{(10 \times 10 - 4) \div 4}"],
        [r"\boxed{4 + 10 + 10}", r"\boxed{2 * 12}"],
    ),
}  # fmt: skip
"""By task: rows of its file, correct replies, wrong replies."""

SEARCHES = {
    "its source": "open(sys.argv[0]).read()",
    "the command lines": "''.join(open(f'/proc/{i}/cmdline').read() for i in ('self', 1))",
    "the environment": "str(os.environ)",
    "its input": "sys.stdin.read()",
    "its globals": "str(globals())",
}
"""Places where a program could look for the word of its test."""

MATHS = [
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)", True),
    (r"p - q", r"-q+p", True),
    (r"\text{Evelyn}", r"\text{Evelyn}", True),
    (r"\text{Evelyn}", r"\text{Angela}", False),
    (r"[1,2)", r"[1,2]", False),
    (r"x \in [-2,7]", r"[-2,7]", True),
    (r"10\%", r"0.1", True),
    (r"2\sqrt{2}", r"\sqrt{8}", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
    (r"18^\circ", "18", True),
    (r"1,2,3", "3,2,1", True),
    ("(10,100)", "(10100)", False),
    ("10, 100", "10,100", True),
    ("10, 100", "10100", False),
    ("58,500", "58500", True),
    ("58500", "58,500", True),
    ("2516_8", "2516_{9}", False),
    ("2516_8", "2516_{8}", True),
    ("2516_8", "2516", True),
    ("N", "n", False),
    (r"\text{(C)}", "C", True),
    ("90", "90°", True),
    ("90°", r"90^\circ", True),
    ("6", "6!", False),
    ("720", "6!", True),
    (r"1\frac{1}{2}", "11/2", False),
    (r"1\frac{1}{2}", "1.5", True),
    ("1", "(-1)^{10000000000}", True),
    ("5", r"9^{9^{9^9}}", False),
    ("5", r"10^{10^{10}}", False),
    ("5", r"10^{-10^{10}}", False),
    ("5", r"\sqrt{9^{9^9}} + 1", False),
    ("5", "1000000!", False),
    (r"9^{9^{9}}", r"$9^{9^{9}}$", True),
    (r"9^{9^{9}}", "5", False),
    (r"9^{9^{9}}", r"3^{2 \cdot 9^9}", None),
]
"""(official answer, boxed answer, grade); None: no grade"""

NUMBERS = [
    ("$1,234.50", "1234.5"), ("-$5", "-5"), ("16-3=13", "13"), (r"\frac{1}{2}", "1/2"),
    (r"70{,}000", "70000"), ("3.", "3"), (".5", "1/2"), ("5/0", None), ("no", None), ("", None),
    ("5 dollars", "5"), ("x = -7", "-7"), ("−18", "-18"), (r"\frac{-36}{2}", "-18"),
]  # fmt: skip
"""(text, its last number)"""

BOXES = [
    ("18", "18"), ("−18", "-18"), ("- 18", "-18"), ("(18)", "18"), ("18.0", "18"),
    (".5", "1/2"), ("007", "7"),
    ("18 m^2", "18"), (r"18 \text{ cm}^2", "18"), (r"18\text{ m/s}^{2}", "18"),
    (r"18 \text{ apples in 3 boxes}", "18"), (r"\text{18}", "18"), (r"\text{18 apples}", "18"),
    (r"2\times 9", "18"), (r"\tfrac{72}{4}", "18"), (r"\frac{-36}{2}", "-18"),
    (r"\frac12", "1/2"), (r"1\frac{1}{2}", "3/2"), (r"-1\frac12", "-3/2"), ("-1/2", "-1/2"),
    (r"1\ 800", "1800"), ("1,800", "1800"), (r"\$1,800.00", "1800"), (r"1,\!800", "1800"),
    ("x = 18", "18"), ("16 - 3 = 13", "13"), (r"18\%", "18"), (r"18^\circ", "18"),
    (r"\$18/\text{day}", "18"), ("18 dollars per day.", "18"), ("about 18", "18"),
    ("1,2,3", None), ("10-28", None), ("18 or 19", None), (r"3\text{ h }20\text{ min}", None),
    (r"\sqrt{18}", None), ("2^{18}", None), ("18!", None), ("18 + x", None), ("3*4*5", None),
    ("5/0", None), ("x", None), (r"\text{unknown}", None), ("", None), ("1" * 9000, None),
]  # fmt: skip
"""(content of a box, its only number)"""

EXPRESSIONS = [
    (r"\boxed{1+2} or <answer>3+4</answer>", "3+4"),
    (r"\boxed{3 \times (4 - 1) = 9}", "3 * (4 - 1)"),
    (r"\boxed{\frac{6}{2} + 1}", "6/2 + 1"),
    (r"\boxed{8 \div \frac{6}2}", "8 / (6/2)"),
    (r"\boxed{24 = 4*6}", "4*6"),
    (r"<answer>\boxed{4*6}</answer>", "4*6"),
    ("I will put it in <answer> tags. <answer>4*6</answer>", "4*6"),
    ("<answer>`4*6`</answer>", "4*6"),
    ("<answer>**4 ⋅ 6**</answer>", "4 * 6"),
    (r"\boxed{4 ∗ 6}", "4 * 6"),
    (r"\boxed{4 x 6}", "4 * 6"),
    (r"\boxed{4\,\times\,6.}", "4 * 6"),
    (r"\boxed{\text{4*6} \\}", "4*6"),
    (r"\boxed{\big(4 + [1 + 1]\big)*4}", "(4 + (1 + 1) )*4"),
    (r"\boxed{-3+5}", "-3+5"),
    ("<answer></answer>", None),
    ("1+2", None),
]
"""(reply, its last expression)"""

NOT_EXPRESSIONS = [
    "9**9**9", "1//2", "2^3", "1.0+1", "abs(1)", "__import__('os')", "(1", "1 2", "True+1", "1/0",
    "9" * 400, "-" * 299 + "1", "(" * 150, "٣+1", "1_0+1", "0x10", "x", "1 if 1 else 2",
]  # fmt: skip
"""Answers that are not arithmetic."""

PROGRAMS = [
    ("```python\ndef f(): 1\n```\n```\nf()\n```", "def f(): 1\n"),
    ("```\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
    ("~~~py\nx = 1\n~~~", "x = 1\n"),
    ("```python\nx = 1\n```\nprints\n```\n1\n```", "x = 1\n"),
    ("```json\n{}\n```", None),
    ("```python\nprint('''```''')\nx = 1", "print('''```''')\nx = 1"),
    ("def f(): pass", "def f(): pass"),
    ("1. So:\n\n   ```python\n   def f():\n       1\n   ```\n2. …", "def f():\n    1\n"),
    ("- ```py\n  def f():\n      1\n  ```", "def f():\n    1\n"),
    ("> ```python\n> def f():\n>     1\n>\n> ```\n> So.", "def f():\n    1\n\n"),
    ("```ipython\nx = 1\n```", "x = 1\n"),
    ("```python\n  def f():\n    1\n```", "def f():\n  1\n"),
    ("Just words here.", None),
    ("", None),
]
"""(reply, its program that defines f)"""

JUDGE_SCORES = [
    ('{"score": 3} {"score": 10}', 10),
    ('{"score": "3"}', None),
    ('{"score": 0}', None),
    ('{"a": {"score": 4}}', 4),
    ("[1]", None),
    ("{" * 2000, None),
]
"""(answer of a judge, its score)"""

LONG_ANSWERS = [
    "(a+b)" * 25,
    "(x+1)^{1000000}",
    "(a+b+c)^{12}(a+b)^{12}",
    r"\sum_{k=1}^{10^9} k",
    "2^{20000}",
    r"\int_0^1 x^x dx",
    "9^{9^9}",
]
"""Answers whose exact value would take too long."""

BAD_FILES = [
    ("a.txt", b"", "a data file ends in .jsonl, .json"),
    ("a.jsonl", b"", "holds no rows; gsm8k is published at https"),
    ("a.jsonl", b'{"question": 1}\n{"question', "line 2: damaged JSON"),
    ("a.jsonl", b"[1, 2]", "row 1 is not an object: '1'"),
    ("a.json", b"[{", "damaged JSON"),
    ("a.jsonl", b"\xff\xfe\x00", "damaged, or not what its name says"),
    ("a.jsonl.gz", b"plain", "damaged, or not what its name says"),
    ("a.jsonl.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 9, "damaged, or not what its name says"),
    ("a.json", b"[" * 99_999, "damaged JSON"),
    ("a.csv", b"a,b\n" + b"x" * 200_000, "damaged, or not what its name says"),
    ("a.jsonl", b'{"problem": "x", "answer": "#### 1"}', "row 1 has no field 'question'"),
    ("a.jsonl", b'{"question": "x", "answer": "none"}', "row 1: the answer has no number"),
    ("a.csv", b"question,answer\n", "holds no rows"),
]
"""(file name, content, part of the error)"""
