"""An answer in a given form: JSON by a schema, and text by a grammar of one's own (GBNF).

Both constrain the answer and every rollout, but not the thinking. They fix the form alone: the
embedded model has never seen JSON, so the number that it writes there is noise, though its thinking
has the right one. In a sentence that it knows it writes the right number. A model that knows JSON
needs the schema only.

    python examples/json_schema.py [model.gguf]
"""

import json
import sys

from tgr_local import TgrLlama

SUMS = ((12, 23), (38, 10), (56, 53), (6, 50))
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
BY_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
BY_GRAMMAR = {"grammar": r'root ::= "The answer is \\boxed{" [0-9]+ "}."'}

with TgrLlama(*sys.argv[1:2]) as llama:
    for name, form in (("schema", BY_SCHEMA), ("grammar", BY_GRAMMAR)):
        for a, b in SUMS:
            response = llama.create_chat_completion(
                [{"role": "user", "content": f"What is {a} + {b}?"}], max_tokens=300, seed=1, **form
            )
            message = response["choices"][0]["message"]
            thought = message["reasoning_content"].split("\n")[-2]
            if name == "schema":
                assert list(json.loads(message["content"])) == SCHEMA["required"]
            print(f"{name}: thinking {thought}, answer {message['content']}")

# With the embedded model this prints:
# schema: thinking 12+23=35, answer {…
# schema: thinking 38+10=48, answer {…
# schema: thinking 56+53=109, answer {…
# schema: thinking 6+50=56, answer {…
# grammar: thinking 12+23=35, answer The answer is \boxed{35}.
# grammar: thinking 38+10=48, answer The answer is \boxed{48}.
# grammar: thinking 56+53=109, answer The answer is \boxed{109}.
# grammar: thinking 6+50=56, answer The answer is \boxed{56}.
