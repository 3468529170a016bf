"""Control vectors: one from two sets of prompts, applied to one request, and one saved as a file.

python examples/control_vectors.py [model.gguf]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from tgr_local import ControlVector, generate, load
from tgr_local.generation.control_vectors import hidden_states, steered, winning_control_vector
from tgr_local.options.resolve import resolve

QUESTION = "What is 12 + 23?"

with load(*sys.argv[1:2]) as engine:
    # a direction in the space of hidden states: from sums to products
    sums, products = ["12+23", "4+5", "31+8"], ["12*23", "4*5", "31*8"]
    ends = [np.mean([hidden_states(engine, t)[-1] for t in texts], 0) for texts in (sums, products)]
    direction = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
    vector = ControlVector(np.tile(direction, (engine.n_layer, 1)), layers=range(1, engine.n_layer))

    config = resolve(engine.metadata, {"max_tokens": 40}).config
    for scale in (0, 20, 40, 60):
        engine_with_vector = steered(engine, scale * vector)
        reply = generate(engine_with_vector, QUESTION, config, method="base")
        print(f"scale {scale}: {reply.thinking!r} -> {reply.text!r}")

    # the injection of the winning anchor of a search, as a file for llama.cpp and repeng
    reply = generate(engine, QUESTION, config)
    winner = winning_control_vector(engine, reply, config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "winner.gguf"
        winner.save(path, engine.metadata["general.architecture"])
        print(f"{path.name}: {path.stat().st_size} bytes")
        again = ControlVector.load(path, engine.n_layer)
    print("equal:", np.array_equal(again.added, winner.added))
