"""Options: what can be set, and which value holds.

In: text from flags, files, variables and model metadata. Out: frozen configs with checked values,
and the origin of each value. Nothing here loads a model or runs anything; a default exists only in
config.py and groups.py.

config.py     EngineConfig, SearchConfig, ChatConfig, ServerConfig
groups.py     the options of a reply, in groups by what uses them
fields.py     a field with documentation and bounds; checking and parsing values
former.py     options that have left the search and the engine
cache.py      types of the KV cache and the bytes of a cell
resolve.py    the user's setting, else the model file's recommendation, else the default
settings.py   options from files and the environment
flags.py      the command line's parser, and flags made from config fields
"""
