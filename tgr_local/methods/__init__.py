"""The methods, by name: exactly one module each.

A method takes a `search.run.Run` and yields one `Step` for each chunk. It knows nothing of
messages, other replies or terminals. Each module has one `METHOD` record: its name, its `run`, the
cells and sequences that it needs, the positions that it decodes at most, and whether it resets,
searches and steers. A new method is a new module and its place in `HOMES` below. Methods that
are there for comparisons alone are in `tgr_local.lab.methods`.

base.py              plain sampling
markov.py            the reset at every chunk, and nothing else
tgr_latent.py        The Geometric Reasoner
tgr_think.py         the thinking by tgr-latent, the answer by plain sampling
vote.py              samples in waves; weighted votes; stops once an answer is sure
auto.py              the vote with settings for a question
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from tgr_local.search.run import Method as Method
from tgr_local.system.near_names import did_you_mean

HOMES = {
    "base": "methods.base",
    "markov": "methods.markov",
    "random-anchor": "lab.methods.random_anchor",
    "tgr-latent": "methods.tgr_latent",
    "tgr-think": "methods.tgr_think",
    "tgr-token": "lab.methods.tgr_token",
    "hard-geometry": "lab.methods.hard_geometry",
    "best-of-n": "lab.methods.best_of_n",
    "self-consistency": "lab.methods.self_consistency",
    "vote": "methods.vote",
    "auto": "methods.auto",
    "power": "lab.methods.power",
    "tot": "lab.methods.tot",
    "got": "lab.methods.got",
}
"""The module of each method. Those of the laboratory are imported when the method is used, and
nothing else of the product imports them."""


class _Methods(Mapping[str, Method]):
    """Loads the module of a method that is looked up."""

    def __getitem__(self, name: str) -> Method:
        method: Method = importlib.import_module(f"tgr_local.{HOMES[name]}").METHOD
        return method

    def __contains__(self, name: object) -> bool:
        return name in HOMES

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


METHODS: Mapping[str, Method] = _Methods()
for _name, _home in HOMES.items():
    if not _home.startswith("lab."):
        METHODS[_name]  # now: a thread that writes a reply imports nothing, as another may fork


def loaded(name: str | Method) -> str | Method:
    """The method of that name, for a thread that must not import it; what is no name of a method
    stays as it is, and `get` refuses it."""
    return METHODS[name] if isinstance(name, str) and name in METHODS else name


def get(name: str | Method) -> Method:
    """The method of that name; a `Method` is returned as it is. Raises ValueError for an unknown
    name, with the nearest one, or all."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise ValueError(f"method is {name!r:.80}, but must be a name, such as 'tgr-latent'")
    if name not in METHODS:
        hint = did_you_mean(name, METHODS, f"there are {', '.join(METHODS)}")
        raise ValueError(f"unknown method {name!r:.80}; {hint}")
    return METHODS[name]
