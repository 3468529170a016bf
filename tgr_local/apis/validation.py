"""Request bodies checked by pydantic, and its errors as one line for the client.

In: a body as JSON has it. Out: a frozen model, or a `RequestError` that names the parameter, the
value, the bound and, where there is one, the way out. Only the first error of a body is reported,
and lists stop at their first bad item, so a hostile body costs no more than a good one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator
from typing_extensions import Self, TypedDict

from tgr_local.options.fields import interval
from tgr_local.options.former import removed_option_error
from tgr_local.system.near_names import did_you_mean

_DEPTH_MOST = 200  # levels of nesting
_HALF = re.compile("[\ud800-\udfff]")
_SHOWN_MOST = 80  # characters of a value in an error
AT_FAULT = "at_fault"
"""The type of a PydanticCustomError whose message goes on after the name of the value."""
_WANTED = {
    "int_type": ("a whole number", "whole numbers"),
    "float_type": ("a number", "numbers"),
    "finite_number": ("a finite number", "finite numbers"),
    "string_type": ("a text", "texts"),
    "bool_type": ("true or false", "true or false"),
    "list_type": ("a list", "lists"),
    "dict_type": ("an object", "objects"),
    "model_type": ("an object", "objects"),
}  # pydantic's error type -> what one value must be, what a list must hold
_SENTENCES = {
    "missing": "{name} is missing; add it",
    "string_unicode": "{name} holds {shown}, which is not valid Unicode",
    "string_too_short": "{name} holds an empty text; remove it",
    "too_short": "{name} is empty, but must hold at least one",
    "string_too_long": "{name} has {n} characters, but may have {most}; shorten it",
    "too_long": "{name} holds {n} values, but may hold {most}; leave some out",
    "greater_than_equal": "{name} is {shown}, but must be {bounds}",
    "less_than_equal": "{name} is {shown}, but must be {bounds}",
}  # pydantic's error type -> the error


class RequestError(ValueError):
    """An invalid request; `param` names the parameter at fault, if there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class OpenObject(TypedDict):
    """Base of the objects within bodies: nothing is converted, and other keys may hold anything."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]


class RequestBody(BaseModel):
    """Base of all bodies: unknown names are refused, nothing is converted, null means absent."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )
    noun: ClassVar[str] = "parameter"
    """Noun for an unknown name in an error."""
    listing: ClassVar[str] = "/openapi.json"
    """Place where all names are listed."""
    resent: ClassVar[Sequence[str]] = ()
    """Parameters that a client sends again with every request: half a surrogate pair in their texts
    becomes U+FFFD, since it would end the conversation forever."""
    wanted: ClassVar[Mapping[str, str]] = {}
    """Description of the types wanted of parameters of several types."""

    @classmethod
    def parse(cls, body: Mapping[str, Any] | Self) -> Self:
        """The body, checked. Raises RequestError."""
        if isinstance(body, cls):
            return body
        if not isinstance(body, Mapping):
            raise RequestError(f"the request is {shown(body)}, but must be an object of parameters")
        try:
            return cls.model_validate(dict(body))
        except ValidationError as error:
            raise request_error(error, cls, body) from None

    @classmethod
    def _supported(cls) -> list[str]:
        """The parameters that may be given: those of other programs alone are no hint."""
        return [
            name
            for name, field in cls.model_fields.items()
            if not any(getattr(mark, "is_refused", False) for mark in field.metadata)
        ]

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_names(cls, body: Any) -> Any:
        # before pydantic, which would make an error of every one
        for name in body if isinstance(body, dict) else ():
            if name not in cls.model_fields:
                near = hint(name, cls._supported(), cls.listing)
                why = removed_option_error(str(name)) or f"unknown {cls.noun} {shown(name)}{near}"
                raise RequestError(why, str(name)[:_SHOWN_MOST])
        for name in cls.resent if isinstance(body, dict) else ():
            if (whole := _without_halves(body.get(name))) is not body.get(name):
                body = {**body, name: whole}
        return body


Model = TypeVar("Model", bound=RequestBody)


def with_fields(fields: Mapping[str, Any]) -> Callable[[type[Model]], type[Model]]:
    """A decorator that adds fields to a body; each is a pair of a type and a default."""

    def extended(model: type[Model]) -> type[Model]:
        about: dict[str, Any] = {"__module__": model.__module__, "__doc__": model.__doc__}
        return create_model(model.__name__, __base__=model, **about, **fields)

    return extended


def _without_halves(value: Any, depth: int = 0) -> Any:
    """A value whose texts are valid Unicode: the same one, if they are."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return _HALF.sub("\ufffd", value) if _HALF.search(value) else value
    if depth > _DEPTH_MOST or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        items = [_without_halves(item, depth + 1) for item in value]
        is_same = all(a is b for a, b in zip(items, value, strict=True))
        return value if is_same else items
    pairs = [
        (_without_halves(k, depth + 1), _without_halves(v, depth + 1)) for k, v in value.items()
    ]
    is_same = all(a is k and b is v for (a, b), (k, v) in zip(pairs, value.items(), strict=True))
    return value if is_same else dict(pairs)


def shown(value: Any, most: int = _SHOWN_MOST) -> str:
    """The beginning of a value, for an error."""
    try:
        return repr(value[:most] if isinstance(value, str) else value)[:most]
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return f"a {type(value).__name__} that is too large to show"


def hint(name: Any, known: Collection[str], elsewhere: str) -> str:
    """The end of an error about an unknown name: the known names that are like it, or where to find
    all."""
    every = f"there is {', '.join(known)}" if len(known) <= 3 else f"{elsewhere} has all"
    return f"; {did_you_mean(str(name), known, every)}"


def request_error(
    error: ValidationError, model: type[RequestBody], body: Mapping[str, Any]
) -> RequestError:
    """The first parameter at fault, in one line."""
    details: list[Any] = error.errors(include_url=False)
    at_fault = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
    # of the alternatives that a parameter has, the one that its value comes closest to
    closest = max(at_fault, key=lambda fault: (_is_of_its_type(fault), len(fault["loc"])))
    path = _path(body, closest)
    if isinstance(cause := closest.get("ctx", {}).get("error"), RequestError):
        is_nested = path and path[0] != "tgr"
        return RequestError(str(cause), str(path[0])) if is_nested else cause
    if path[:1] == ["tgr"] and len(path) > 1:  # an option is named as on the command line
        path = path[1:]
    param = str(path[0]) if path else ""
    if param in model.wanted and not _is_of_its_type(closest):
        return RequestError(
            f"{param} is {shown(body.get(param))}, but must be {model.wanted[param]}", param
        )
    same = [detail for detail in at_fault if len(detail["loc"]) == len(closest["loc"])]
    return RequestError(
        _sentence(path, closest, same, _bounds(model, closest["loc"])), param or None
    )


def _is_of_its_type(detail: Any) -> bool:
    return not detail["type"].endswith("_type")


def _sentence(path: list[Any], detail: Any, same: list[Any], bounds: str) -> str:
    """Describes the error at a path; `same` are the errors of all alternatives there."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    in_list = len(path) > 1 and isinstance(path[-1], int)
    name = _name(path[:-1] if in_list else path)
    if kind == AT_FAULT:
        return f"{_name(path)} {detail['msg']}"
    if kind in _SENTENCES:
        n = len(value) if kind.endswith("too_long") else 0
        about = {"name": name, "n": n, "most": context.get("max_length"), "bounds": bounds}
        if "{shown}" in (sentence := _SENTENCES[kind]):  # a whole body takes long to be shown
            about["shown"] = shown(value)
        return sentence.format(**about)
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{name} is {shown(value)}, but must be one of {', '.join(choices)}"
    if kind == "float_type" and isinstance(value, int) and not isinstance(value, bool):
        same = [{"type": "finite_number"}]  # too large for a float
    wanted = dict.fromkeys(
        _WANTED[detail["type"]][in_list] for detail in same if detail["type"] in _WANTED
    )
    verbs = ("holds", "hold") if in_list else ("is", "be")
    return f"{name} {verbs[0]} {shown(value)}, but must {verbs[1]} {' or '.join(wanted) or bounds}"


def _path(body: Any, error: Mapping[str, Any]) -> list[Any]:
    """The names and indices in an error's location, without the types that pydantic tried."""
    path, location = [], error["loc"]
    for i, part in enumerate(location):
        is_last = i == len(location) - 1
        if isinstance(body, Mapping) and (
            part in body if not is_last else _is_at(body, part, error)
        ):
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int):
            body = body[part]
        else:
            continue
        path.append(part)
    return path


def _is_at(body: Mapping[Any, Any], part: Any, error: Mapping[str, Any]) -> bool:
    """Whether the error is about this part of the body, and the part not a type."""
    return error["type"] == "missing" or (part in body and body[part] is error["input"])


def _name(path: list[Any]) -> str:
    name = str(path[0]) if path else "the request"
    for part in path[1:]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name


def _bounds(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    """The bounds of a parameter, or of an option in ``tgr`` or ``options``."""
    if location[:1] in (("tgr",), ("options",)) and len(location) > 1:
        nested: Any = model.model_fields[location[0]].annotation
        model = next(kind for kind in nested.__args__ if isinstance(kind, type(BaseModel)))
        location = location[1:]
    field = model.model_fields.get(str(location[0])) if location else None
    limits = {
        name: value
        for bound in (field.metadata if field else ())
        for name in ("ge", "le")
        if (value := getattr(bound, name, None)) is not None
    }
    return interval(limits.get("ge"), limits.get("le")) if limits else "of another type"
