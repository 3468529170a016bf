"""AIME 2024 and 2025: 30 problems each, the answers whole numbers from 0 to 999."""

from tgr_local.lab.eval.tasks.data import Source
from tgr_local.lab.eval.tasks.maths import Maths

AIME24 = Maths(
    "aime24",
    "30 problems of the AIME 2024; whole numbers",
    Source(
        ("aime24/test.jsonl", "aime24.jsonl", "aime24/*.parquet"),
        "https://huggingface.co/datasets/HuggingFaceH4/aime_2024",
        {"path": "HuggingFaceH4/aime_2024", "split": "train"},
    ),
)
AIME25 = Maths(
    "aime25",
    "30 problems of the AIME 2025; whole numbers",
    Source(
        ("aime25/test.jsonl", "aime25.jsonl", "aime25/*.parquet"),
        "https://huggingface.co/datasets/math-ai/aime25",
        {"path": "math-ai/aime25", "split": "test"},
    ),
)
