"""Model files on this machine.

In: a name, a path, or a repository on Hugging Face. Out: the path of a GGUF file, and the facts in
its header. Nothing here loads a model; only `download` and `hub` use the network, on request.

library.py       the embedded model, finding a model by name, describing it; names elsewhere
gguf_header.py   reading the header of a GGUF file
strengths.py     strengths of injections that were measured, in the cache folder
file_hash.py     the sha256 of a model file, computed once
hub.py           which files a repository has
download.py      downloading a file, with resumption and a checksum
command.py       tgr-local models
"""
