"""The server: OpenAI's endpoints, and a few of llama.cpp's, over one loaded model.

    serve.py       the socket, the signals, the exit code
    connection.py  a client's connection, and how long it may wait for its client
    app.py         which address does what
    service.py     the model, its state, and a request's way through it
    jobs.py        work in threads: how many run, how many wait, when they are cancelled
    bodies.py      JSON in: so many bytes at a time
    wire.py        JSON and event streams out
    guard.py       who may ask: keys and origins
    problems.py    every error as a status and a body in OpenAI's shape
    grants.py      what one request may take
    log.py metrics.py    what happened
    infill.py embeddings.py tokens.py    endpoints that completions do not cover
    schema.py      the bodies, for /openapi.json
    index.html     the page at /

What a request means and what a response looks like is the business of `tgr_local.openai.completions`.
"""
