"""Options: what can be set, and which value holds; the models that can be named.

In: text from flags, files and variables, and the headers of model files. Out: frozen configs with
checked values, the origin of each value, the file of a model. Nothing here loads a model or runs
anything; the default of an option exists only in config.py and groups.py.

config.py       EngineConfig, SearchConfig, ChatConfig, CodeConfig, ServerConfig
groups.py       the options of a reply, in groups by what uses them
fields.py       a field with documentation and bounds; checking and parsing values
former.py       options that have left
resolve.py      the user's setting, else the model file's recommendation, else the default
settings.py     options from files and the environment
flags.py        the command line's parser, and flags made from config fields
foreign_flags.py  flags of llama.cpp and commands of ollama, and what they are called here
model_files.py  the models on this machine: finding one by name, describing it
model_parts.py  the files of a model in parts
strength_files.py  measured strengths of injections, in the cache folder, by model file
model_names.py  names of models that can be downloaded
gguf_header.py  reading the header of a GGUF file
"""
