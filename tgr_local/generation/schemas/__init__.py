"""JSON schemas as grammars: what a schema demands is followed, or named.

In: a schema as JSON has it, from anywhere. Out: GBNF whose every text is valid for the schema; what
no grammar can follow is an error that names the keyword and its place, or for functions that a
model may call, the name of what is not followed. Work is counted and bounded. It does not know
requests or models.

normal.py         a schema as alternatives of one type each
keywords.py       what each keyword says of every type
alternatives.py   Alternative: the values of one type
references.py     where each part of a schema stands, and what its references lead to
grammar.py        schema_grammar: GBNF of a schema
json_text.py      json_grammar: GBNF of JSON, by a schema as people write it
numbers.py        GBNF of the numbers between two bounds
patterns.py       GBNF of the texts that a regular expression matches
work.py           StepBudget: how much is left to do, for all schemas of a request; each is read
                  once: what was found, and what leads to it
functions.py      followable: parameters of functions as shapes for a chat template, and their rules
"""

from tgr_local.generation.schemas.functions import Followable as Followable
from tgr_local.generation.schemas.functions import followable as followable
from tgr_local.generation.schemas.grammar import schema_grammar as schema_grammar
from tgr_local.generation.schemas.json_text import json_grammar as json_grammar
from tgr_local.generation.schemas.normal import SchemaError as SchemaError
