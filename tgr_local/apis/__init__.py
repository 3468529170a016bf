"""OpenAI's, Anthropic's, llama.cpp's, Ollama's and llama-cpp-python's interfaces over generation,
without a network.

In: an engine and the body of a request. Out: responses in the format of the API, or
llama-cpp-python's objects. Every body becomes one `PreparedRequest`, which is written as one stream
of events; each API translates the two in files of its own. It does not know sockets, HTTP, keys or
the limits of a server.

bodies.py             the request bodies: pydantic models, the contract of server and Python API
client_parameters.py  parameters of clients that are ignored or not supported
search_options.py     the `tgr` part, made from the fields of SearchConfig
validation.py         pydantic's errors as one line
requests.py           a body and an engine → a PreparedRequest
inputs.py             messages and tools of a chat, prompts, the grammar
infill.py             the prompt for the text between two texts
logit_bias.py         `logit_bias`, in the forms of OpenAI and of llama.cpp
tools.py              tools and the choice among them, in the forms of all clients
other_parts.py        parts of a conversation that are not text, as text; earlier thinking
events.py             what happens while a response is written, without any API's format
writing.py            a PreparedRequest → its events and its Response, which the APIs translate
completions.py        OpenAI's chats and completions, whole or as a stream
messages.py           Anthropic's messages: the request
message_events.py     … the response
responses.py          OpenAI's responses: the request
response_events.py    … the response
response_store.py     … earlier ones, which a request continues
calls.py              a reply as text, thinking and calls of tools
bare_calls.py         calls as JSON without the tags of a template
timings.py            timings and the progress of reading, as llama-server has them
native.py             llama.cpp's /completion and /infill
ollama.py             Ollama's /api/chat and /api/generate
logprobs.py           tokens with their log-probabilities
embeddings.py         /v1/embeddings: a vector for each text
rerank.py             /v1/rerank: how relevant documents are
llama.py              TgrLlama, a replacement of llama_cpp.Llama
llama_options.py      … options and names of llama_cpp that are not there; types; LlamaGrammar
aio.py                generation and responses for asyncio
"""
