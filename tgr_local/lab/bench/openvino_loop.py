"""OpenVINO GenAI as a contender: a script that another Python runs, for `programs.OpenVino`.

In: a GGUF file and a number of threads as arguments; lines with the tokens of a prompt and of a
text, of which one is 0. Out: the seconds of each, a line.
"""

import importlib
import os
import sys
import time


def main() -> None:
    """Loads the model, then measures until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints gives no answer
    genai = importlib.import_module("openvino_genai")
    numpy, openvino = importlib.import_module("numpy"), importlib.import_module("openvino")
    pipeline = genai.LLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=int(sys.argv[2]))
    rng = numpy.random.default_rng(0)
    for line in sys.stdin:
        n_read, n_written = map(int, line.split())
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = max(1, n_written), True
        # another prompt each time: it remembers those that it has read
        tokens = openvino.Tensor(rng.integers(100, 4000, (1, max(1, n_read))))
        start = time.perf_counter()
        pipeline.generate(tokens, config)
        print(time.perf_counter() - start, file=answers, flush=True)


if __name__ == "__main__":
    main()
