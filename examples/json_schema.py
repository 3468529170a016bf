"""JSON by a schema: the grammar constrains the answer and every rollout, but not the thinking.

python examples/json_schema.py [model.gguf]
"""

import json
import sys

from tgr_local import TgrLlama

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}

with TgrLlama(*sys.argv[1:2]) as llama:
    response = llama.create_chat_completion(
        [{"role": "user", "content": "What is 12 + 23?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}},
        max_tokens=300,
        seed=1,
    )
    message = response["choices"][0]["message"]
    print("thinking:", message.get("reasoning_content"))
    print("answer:  ", json.loads(message["content"]))
