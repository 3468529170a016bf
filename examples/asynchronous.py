"""Several questions in one event loop; the engine decodes them together.

python examples/asynchronous.py [model.gguf]
"""

import asyncio
import sys

from tgr_local import load
from tgr_local.apis import aio
from tgr_local.apis.requests import chat_request

QUESTIONS = [f"What is {i} + {i + 7}?" for i in range(4)]


async def ask(engine, question):
    body = {"messages": [{"role": "user", "content": question}], "seed": 1}
    response = await aio.respond(engine, chat_request(engine, body))
    return response["choices"][0]["message"]["content"]


async def main():
    with load(*sys.argv[1:2]) as engine:
        answers = await asyncio.gather(*(ask(engine, question) for question in QUESTIONS))
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(question, answer)
        body = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "seed": 1}
        async for chunk in aio.chunks(engine, chat_request(engine, body)):
            delta = chunk["choices"][0]["delta"]
            print(delta.get("content") or "", end="", flush=True)
        print()


asyncio.run(main())

# With the embedded model this prints:
# What is 0 + 7? The answer is \boxed{7}.
# What is 1 + 8? The answer is \boxed{9}.
# What is 2 + 9? The answer is \boxed{11}.
# What is 3 + 10? The answer is \boxed{13}.
# The answer is \boxed{7}.
