"""Control vectors: one made from two sets of prompts, applied to a request, and one as a file.

The embedded model computes sums and declines everything else. The vector points from questions
that it declines to questions that it computes; added in one layer, it makes the model compute an
answer to any question. Its length counts: the states of that layer have a norm of about 460.

    python examples/control_vectors.py [model.gguf]
"""

import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tgr_local import ControlVector, generate, load
from tgr_local.generation import query_tokens
from tgr_local.generation.control_vectors import hidden_states, steered, winning_control_vector
from tgr_local.options.resolve import resolve

if find_spec("gguf") is None:  # for the file
    sys.exit("this example needs gguf; run: pip install 'tgr-local[steer]'")
COMPUTED = ["What is 12 + 23?", "Compute 4 * 7.", "31 + 8 = ?", "What is 90 - 45?"]
DECLINED = ["What is the capital of France?", "Tell me about music.", "Who is Mozart?"]
NEW = ["What is the capital of Japan?", "Tell me about chess.", "Who is Newton?", "Tell me a joke.",
       "Explain gravity.", "Where is Peru?", "Describe the moon", "Sing a song"]  # fmt: skip

with load(*sys.argv[1:2]) as engine:
    config = resolve(engine.metadata, {"max_tokens": 60, "temperature": 0.0}).config

    def mean_state(questions):
        """The mean state after the last token of the prompts, (n_embd,)."""
        prompts = [query_tokens(engine, question, config) for question in questions]
        return np.mean([hidden_states(engine, prompt)[-1] for prompt in prompts], axis=0)

    direction = mean_state(COMPUTED) - mean_state(DECLINED)
    direction /= np.linalg.norm(direction)
    layer = engine.n_layer - 2
    vector = ControlVector(np.tile(direction, (engine.n_layer, 1)), layers=[layer])

    for scale in (0, 150, 300, 450):
        engine_with_vector = steered(engine, scale * vector)
        replies = [
            generate(engine_with_vector, question, config, method="base") for question in NEW
        ]
        n_computed = sum("boxed" in reply.text for reply in replies)
        first = textwrap.shorten(replies[0].text, 40)
        print(f"scale {scale:3}: computes {n_computed} of {len(NEW)}. {NEW[0]} {first}")

    # the injection of the winning anchor of a search, as a file for llama.cpp and repeng
    config = resolve(engine.metadata, {"search_from": 0, "temperature": 0.0}).config
    reply = generate(engine, "What is 12 + 23?", config, method="tgr-latent")
    winner = winning_control_vector(engine, reply, config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "winner.gguf"
        winner.save(path, engine.metadata["general.architecture"])
        print(f"{path.name}: {path.stat().st_size} bytes")
        again = ControlVector.load(path, engine.n_layer)
    print("equal:", np.array_equal(again.added, winner.added))

# With the embedded model this prints:
# scale   0: computes 0 of 8. What is the capital of Japan? Sorry, I only know arithmetic, [...]
# scale 150: computes 0 of 8. What is the capital of Japan? Sorry, I only know arithmetic, [...]
# scale 300: computes 8 of 8. What is the capital of Japan? 43+2=45 The answer is \boxed{45}.
# scale 450: computes 8 of 8. What is the capital of Japan? The answer is \boxed{5}.
# winner.gguf: 5056 bytes
# equal: True
