"""The ``tgr`` part of a request: `SearchConfig` as a pydantic model, made from its fields.

Types, bounds and descriptions are those of `tgr_local.options.config`; no option is named here.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tgr_local.apis.validation import RequestBody, with_fields
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import INT_MAX, types_of

_TYPES = types_of(SearchConfig)
_OPTIONS = {
    spec.name: spec
    for spec in dataclasses.fields(SearchConfig)
    if not spec.metadata["is_path"]  # a client names no files of the server
}


def optional(doc: str, **bounds: Any) -> Any:
    """A pydantic field, absent by default."""
    return Field(None, description=doc, **bounds)


def whole_field(doc: str, *, least: int = -1, most: int = INT_MAX) -> Any:
    """A field for a whole number, absent by default."""
    return optional(doc, ge=least, le=most)


def option_field(name: str, **changes: Any) -> Any:
    """A field with the bounds and the description of an option, absent by default."""
    metadata, kind = _OPTIONS[name].metadata, _TYPES[name]
    bounds = {"doc": metadata["doc"]}
    if not metadata["choices"] and typing.get_origin(kind) is not tuple:  # whose types have them
        high = INT_MAX if kind is int and metadata["high"] is None else metadata["high"]
        bounds |= {"ge": metadata["low"], "le": high, "max_length": metadata["longest"]}
    bounds |= changes
    return optional(**{key: value for key, value in bounds.items() if value is not None})


def option_fields(*names: str, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the same names and types as some options, for `with_fields`; `changes` of some of
    them as `option_field` takes them."""
    return {
        name: (_type(name) | None, option_field(name, **changes.get(name, {}))) for name in names
    }


def text_bounds(name: str) -> Any:
    """The bounds of one text of an option that is a list of texts."""
    return Field(min_length=1, max_length=_OPTIONS[name].metadata["longest"])


def list_bounds(name: str) -> Any:
    """The bounds of the list itself."""
    return Field(max_length=_OPTIONS[name].metadata["most"], fail_fast=True)


as_list = BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value)
"""Takes tuples too, which Python programs give."""


def _type(name: str) -> Any:
    """The type of an option, as JSON has it."""
    choices, kind = _OPTIONS[name].metadata["choices"], _TYPES[name]
    if choices:
        return Literal[choices]
    if typing.get_origin(kind) is not tuple:
        return kind
    text = Annotated[str, text_bounds(name)]
    return Annotated[list[text], list_bounds(name), as_list]


@with_fields(option_fields(*_OPTIONS))
class TgrOptions(RequestBody):
    """How this request is answered: the method, and any option of the search."""

    noun: ClassVar[str] = "option"
    listing: ClassVar[str] = "tgr-local run --help-all"
    method: str | None = Field(None, description="name of the method")
    progress: bool | None = Field(
        None, description="a stream also reports what the search does, in chunks without choices"
    )

    def options(self) -> dict[str, Any]:
        """The fields of SearchConfig that are given."""
        given = {name: getattr(self, name) for name in _OPTIONS}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None
        }
