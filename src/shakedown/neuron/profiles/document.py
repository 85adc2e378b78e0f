"""A profile's TOML file as a checked value. Every mistake is reported with the file and the line it stands on."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from ..errors import ProfileError

Mode: TypeAlias = Literal["eager", "compile"]
Api: TypeAlias = Literal["torch.sparse", "torch.func", "torch.nested", "torch.distributions", "forward-mode AD"]
_Text: TypeAlias = Annotated[str, Field(min_length=1)]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Names: TypeAlias = Annotated[tuple[_Text, ...], Field(min_length=1)]


def _is_dtype(name: str) -> str:
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(f"PyTorch has no dtype {name!r}")
    return name


_Dtype: TypeAlias = Annotated[str, AfterValidator(_is_dtype)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class When(_Strict):
    """Conditions of an operator rule; all that are given must hold.

    ``dtypes``: one of the tensor arguments has one of them; ``output_dtypes``: one of the results has; ``contiguous``:
    false = at least one tensor argument is not contiguous, true = all are; ``modes``: where the rule applies.
    """

    dtypes: tuple[_Dtype, ...] | None = None
    output_dtypes: tuple[_Dtype, ...] | None = None
    contiguous: StrictBool | None = None
    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("eager", "compile")


class _Rule(_Strict):
    """What every rule has: its name, and where the release says so. ``note`` tells of disagreement and of doubt."""

    id: _Name
    source: _Text
    date: datetime.date
    note: str = ""


class OperatorRule(_Rule):
    """Calls of these operators run on the CPU, or are refused."""

    kind: Literal["operator"]
    operators: _Names
    when: When = When()
    action: Literal["fallback", "refuse"]


class DtypeRule(_Rule):
    """Operators compute in `to` what has dtype `dtype`; results keep `dtype`. Warned of once per process."""

    kind: Literal["dtype"]
    dtype: _Dtype
    to: _Dtype
    except_operators: tuple[_Text, ...] = ()
    action: Literal["narrow"]

    @model_validator(mode="after")
    def _is_narrower(self) -> DtypeRule:
        wide, narrow = getattr(torch, self.dtype), getattr(torch, self.to)
        alike = wide.is_floating_point == narrow.is_floating_point and wide.is_complex == narrow.is_complex
        if not alike or narrow.itemsize >= wide.itemsize or torch.bool in (wide, narrow):
            raise ValueError(f"{self.dtype} cannot be narrowed to {self.to}: another kind of number, or not narrower")
        return self


class CompileRule(_Rule):
    """A parameter of ``torch.compile`` whose values, but for `allowed` ones and the default, are refused or warned of; or
    what becomes of inputs that are not contiguous: a copy on every call, which changes no value.
    """

    kind: Literal["compile"]
    what: Literal["dynamic", "mode", "options", "strided inputs"]
    allowed: tuple[_Text, ...] = ()
    action: Literal["refuse", "warn", "copy"]

    @model_validator(mode="after")
    def _copies_are_of_inputs(self) -> CompileRule:
        if (self.what == "strided inputs") != (self.action == "copy") or (self.action == "copy" and self.allowed):
            raise ValueError('strided inputs can only be copied: action = "copy", without allowed; nothing else can')
        return self

    @model_validator(mode="after")
    def _dynamic_is_refused(self) -> CompileRule:
        if self.what == "dynamic" and (self.action != "refuse" or self.allowed):
            raise ValueError('dynamic shapes can only be refused: action = "refuse", without allowed')
        return self


class ApiRule(_Rule):
    """A whole API that refuses tensors of the device."""

    kind: Literal["api"]
    api: Api
    action: Literal["refuse"]


Rule: TypeAlias = Annotated[OperatorRule | DtypeRule | CompileRule | ApiRule, Field(discriminator="kind")]


class Document(_Strict):
    """A profile: the release it imitates, and the rules."""

    name: _Name
    release: _Text
    description: _Text
    rule: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Document:
        if self.name == "native":
            raise ValueError("the name native is taken: it means no profile")
        ids = [rule.id for rule in self.rule]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"two rules have the id {twice[0]!r}")
        once = [
            r.dtype if isinstance(r, DtypeRule) else r.what for r in self.rule if isinstance(r, DtypeRule | CompileRule)
        ]
        repeated = sorted({o for o in once if once.count(o) > 1})
        if repeated:
            raise ValueError(f"two rules speak of {repeated[0]!r}")
        return self


# --- reading ------------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"^\s*\[\[\s*rule\s*\]\]")


class Source:
    """A profile's text, and where its parts stand in it. (tomllib keeps no lines.)"""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.lines = text.splitlines()
        self._headers = [n for n, line in enumerate(self.lines) if _HEADER.match(line)]

    def line(self, rule: int | None, *keys: str) -> int:
        """Number of the line that holds the last of `keys` (or a quoted value) found in rule number `rule`, from 1.

        With ``rule=None``: in the part before the first rule. The beginning of that part when none is found.
        """
        if rule is None or rule >= len(self._headers):
            start, end = 0, self._headers[0] if self._headers else len(self.lines)
        else:
            start, end = self._headers[rule], (*self._headers, len(self.lines))[rule + 1]
        found = start
        for key in keys:
            word = re.escape(key)
            pattern = re.compile(rf"""^\s*["']?{word}["']?\s*[=.]|[\[.{{,]\s*{word}\s*[\]=]|["']{word}["']""")
            found = next((n for n in range(start, end) if pattern.search(self.lines[n])), found)
        return found + 1

    def error(self, line: int, message: str) -> ProfileError:
        return ProfileError(f"{self.path}, line {line}: {message}")


def read(path: Path) -> tuple[Source, Document]:
    """The checked contents of the file at `path`.

    Raises:
        ProfileError: it cannot be read, is not TOML, or breaks the format.
    """
    try:
        source = Source(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"profile {path} cannot be read: {error}") from None
    try:
        raw = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"line (\d+)", str(error))
        raise source.error(int(where[1]) if where else len(source.lines), f"not TOML: {error}") from None
    try:
        return source, Document.model_validate(raw)
    except ValidationError as errors:
        raise _clearest(source, errors.errors()) from None


def _clearest(source: Source, errors: list[Any]) -> ProfileError:
    """One error of several: a name that should not be there, which often is why another one is missing, or the first."""
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    message, keys = str(error["msg"]).removeprefix("Value error, "), list(error["loc"])
    number: int | None = None
    if len(keys) > 1 and keys[0] == "rule":
        number, keys = keys[1], keys[3:]  # keys[2] is the kind of the rule
        if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
            keys = ["kind"]
    names = [key for key in keys if isinstance(key, str)]
    shown = ".".join(names) + ": " if names else ""
    twice = re.match(r"two rules .* '(.+)'$", message)
    if twice:
        quoted = re.compile(rf"""["']{re.escape(twice[1])}["']""")
        second = [n for n, line in enumerate(source.lines, 1) if quoted.search(line)][1]
        return source.error(second, message)
    there = names[:-1] if error["type"] == "missing" else names
    return source.error(source.line(number, *there), shown + message)
