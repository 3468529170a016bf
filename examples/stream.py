"""The events of a reply: text as it is written, the scores of every boundary, and the reply last.

python examples/stream.py [model.gguf]
"""

import sys

from tgr_local import Progress, TextDelta, load, stream

with load(*sys.argv[1:2]) as engine:
    for event in stream(engine, "Use 2, 6, 50 to make 38"):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, Progress) and event.candidates is not None:
            scores = event.candidates.scores
            every = " ".join(f"{score:.2f}" for score in scores.total)
            print(f"\n  [chunk {event.chunk}: S = {every} -> {scores.chosen}]")
    reply = event  # the last event
    print(f"\n{reply.n_tokens} tokens, {reply.counts.total} positions decoded, {reply.finish}")

# With the embedded model this prints:
#
#   [chunk 0: S = -3.00 -3.16 -2.92 -3.17 -3.18 -3.18 -2.92 -3.25 -> 2]
# 1: 50*2=100 [6,100] 100-6=94 no
# 2
#   [chunk 1: S = -3.16 -3.19 -3.20 -3.16 -2.70 -3.18 -3.20 -3.11 -> 4]
# : 6*2=12 [50,12] 50-12=38 yes
# The answer is \
#   [chunk 2: S = -2.84 -2.85 -2.85 -2.84 -2.86 -2.80 -2.85 -2.81 -> 5]
# boxed{50-6*2}.
# 74 tokens, 438 positions decoded, stop
