"""The events of a reply: text as it is written, the scores of every boundary, and the reply last.

python examples/stream.py [model.gguf]
"""

import sys

from tgr_local import load, stream
from tgr_local.generation.text import TextDelta
from tgr_local.search.steps import Progress

with load(*sys.argv[1:2]) as engine:
    for event in stream(engine, "What is 12 + 23 - 4 + 7?"):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, Progress) and event.candidates is not None:
            scores = event.candidates.scores
            print(f"\n  [chunk {event.chunk}: S = {scores.total.round(2)} -> {scores.chosen}]")
    reply = event  # the last event
    print(f"\n{reply.n_tokens} tokens, {reply.counts.total} positions decoded, {reply.finish}")
