"""OpenAI's and llama-cpp-python's interfaces over generation, without a network.

In: an engine and the body of a request. Out: responses in OpenAI's format, or llama-cpp-python's
objects. It does not know sockets, HTTP, keys or the limits of a server.

    bodies.py             the request bodies: pydantic models, the contract of server and Python API
    client_parameters.py    parameters of clients that are ignored or not supported
    search_options.py       the `tgr` part, made from the fields of SearchConfig
    validation.py           pydantic's errors as one line
    requests.py           a body and an engine → a PreparedRequest
    inputs.py               messages and prompts
    grammars.py             the grammar of a request, also made from a JSON schema
    events.py             what happens while a response is written, without any API's format
    answer.py             a PreparedRequest → its events and its Answer, which the APIs translate
    completions.py        OpenAI's translations: a response, whole or as a stream
    logprobs.py             tokens with their log-probabilities
    llama.py              TgrLlama, a replacement of llama_cpp.Llama
    aio.py                generation and responses for asyncio
"""
