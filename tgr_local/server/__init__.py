"""The server: OpenAI's, Anthropic's, llama.cpp's and Ollama's APIs over one model or several.

In: HTTP requests. Out: JSON and event streams. It does not know how a reply is written, nor what a
parameter means: `tgr_local.apis` has the bodies, their meaning and the responses.

    serve.py       the socket, the signals, the exit code
    connection.py  a client's connection, and its time limits
    app.py         which address calls what: doubled slashes, HEAD and wrong ones too
    replies.py     the addresses that write replies, API by API
    ollama.py      Ollama's addresses
    openapi.py     /openapi.json, made from the models of the bodies
    service.py     the path of a request
    models.py      the models: found by name, leased, listed
    catalog.py     … which files there are, under which names
    pool.py        … which are in memory, who uses them, which goes
    lease.py       … one of them, and a request's claim to it
    loaded.py      a loaded model, and what its requests share
    model_routes.py    /v1/models, /models/load, /models/unload, /models/sse, /lora-adapters
    model_events.py    … what happens to them, for clients that watch
    jobs.py        work in threads: how many run, how many wait, when they are cancelled
    watch.py       devices that do not answer
    bodies.py      from the socket to JSON: bounded bytes, bounded time
    wire.py        JSON and event streams out
    answer_now.py  running requests that can be asked for the answer now
    auth.py        API keys and trusted origins
    limits.py      what one request may use
    errors.py      every error as a status and a body
    log.py         one line for each request
    metrics.py     counts and times for Prometheus
    tokens.py      endpoints that write no replies
    prompt_cache.py        prompts that were read, kept in files
    page_files.py page/          the page at /: its files
    markup.py                    /render: Markdown as HTML for the page
"""
