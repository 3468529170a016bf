"""OpenAI's and llama-cpp-python's interfaces over generation, without a network."""
