"""Requests to a server with OpenAI's Python package. First, in another terminal: tgr-local serve

python examples/server_openai.py [URL] [KEY]
"""

from __future__ import annotations

import sys

try:
    from openai import OpenAI
except ModuleNotFoundError:
    sys.exit("this example needs openai; run: pip install openai")

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"

client = OpenAI(base_url=URL, api_key=KEY)
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "What is 12 + 30 * 2?"}],
    max_tokens=64,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"tgr": {"method": "tgr-latent", "n_candidates": 4, "progress": True}},
)
for chunk in stream:
    extra = (chunk.model_extra or {}).get("tgr", {})
    scores = extra.get("progress", {}).get("scores")
    if scores:
        print(f"\n[candidate {scores['chosen']} of {len(scores['total'])}]", end=" ")
    for choice in chunk.choices:
        thinking = (choice.delta.model_extra or {}).get("reasoning_content")
        print(thinking or choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        forward = extra["forward_tokens"]["total"]
        print(f"\n{chunk.usage.completion_tokens} tokens kept, {forward} forward tokens")
