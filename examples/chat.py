"""A conversation with TgrLlama, the replacement for llama_cpp.Llama.

python examples/chat.py [model.gguf]
"""

import sys

from tgr_local import TgrLlama

with TgrLlama(*sys.argv[1:2]) as llama:
    messages = [{"role": "user", "content": "What is 12 + 23 - 4?"}]
    response = llama.create_chat_completion(
        messages, seed=1, method="tgr-latent", tgr={"n_candidates": 4, "thinking_budget": 200}
    )
    message = response["choices"][0]["message"]
    print("thinking:", message.get("reasoning_content"))
    print("answer:  ", message["content"])
    print("tokens:  ", response["usage"]["completion_tokens"], "new")
    print("decoded: ", response["tgr"]["forward_tokens"]["total"], "positions")

# With the embedded model this prints:
# thinking: 12+23-4
# 12+23=35; 35-4
# 35-4=31
#
# answer:   The answer is \boxed{31}.
# tokens:   41 new
# decoded:  97 positions
