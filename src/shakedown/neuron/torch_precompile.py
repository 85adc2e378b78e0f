"""What PyTorch's precompile needs to be safe to switch on: patches, each with its reason, applied while it is on.

As it is (2.13, 2.14) it ends the program where a guard, a source file or a name cannot be packed, and where an entry
cannot be installed; it looks for functions by name and line alone; and it unpickles what lies in a directory of temporary
files. Here every such failure means that a function is traced as if there were no cache.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

from torch._dynamo import bytecode_transformation, package

from .modes.compile import precompile

_NUMBERED = re.compile(r"__\w+?_(\d{1,9})")  # what Dynamo puts into a module's globals


class Package(package.CompilePackage):
    """What is packed of one function; `ours` when it is compiled for this device, `aside` when nothing of it is to be."""

    ours = aside = False
    pinned: dict[
        tuple[str, str], str
    ]  # (module, path in its globals) of what has to be the same function or class: its name
    _broken = False

    def initialize(self, fn: Any, dynamo: Any = None, ignore_inlined_sources: bool = False) -> None:
        self.pinned = {}
        ident = precompile.found_id()
        if ident is not None:
            # PyTorch's id is a name and a line: two programs, or two options, would take each other's entries.
            self.__dict__["source_id"] = ident
            self.ours, self.aside = True, ident == precompile.ASIDE
        if self.aside and not hasattr(precompile._innermost(fn), "__code__"):
            fn = _nothing  # PyTorch takes it for granted that what it compiles is a function
        if dynamo is None or not self.ours:
            super().initialize(fn, dynamo, ignore_inlined_sources)
            return
        try:
            precompile.check_sources(dynamo)
            self.pinned = dict(dynamo.pinned)
            super().initialize(fn, dynamo, ignore_inlined_sources)
        except Exception as error:
            self._begin_again(fn, error)

    def install(self, backends: Any) -> None:
        """PyTorch would initialise the package a second time after a failure, which is an AssertionError."""
        if self._broken:
            return
        if not self.ours:
            super().install(backends)
            return
        try:
            super().install(backends)
            for (module, path), known in self.pinned.items():
                if (today := _named_at(module, path)) != known:
                    raise precompile.NotHere(f"{path} of {module} is {today}, and was {known}")
            modules = self._modules()
        except Exception as error:
            fn, modules = self._innermost_fn, self._modules()
            self.uninstall()
            self._begin_again(fn, error)
        _take_numbers(modules)

    def _modules(self) -> list[ModuleType]:
        names = {code.python_module for code in self._codes.values()}
        return [sys.modules[name] for name in names if name in sys.modules]

    def _install_global(self, module: Any, name: str, value: Any) -> None:
        """Names of continuations end with a number of the process that made them: one of this process may have the same."""
        there = vars(module).get(name, value)
        if self.ours and name.startswith("__resume_at_") and _code_of(there) != _code_of(value):
            raise precompile.NotHere(f"the name {name} is taken in {module.__name__}")
        super()._install_global(module, name, value)

    def _begin_again(self, fn: Any, error: Exception) -> None:
        precompile.unusable(getattr(precompile._innermost(fn), "__qualname__", "?"), error)
        self._broken = True
        self._initialized = False
        self._codes.clear()
        super().initialize(fn, None)

    def cache_entry(self) -> Any:
        entry = super().cache_entry()
        entry.pinned = dict(self.pinned)
        return entry

    @contextmanager
    def code_context(self, code: Any) -> Iterator[None]:
        """A function that PyTorch meets on the way and cannot name again (a local one) is compiled and not packed."""
        if self.ours and code not in self._codes:
            try:
                self._add_user_function(code)
            except Exception as error:
                self._left_out(error)
                self._codes.pop(code, None)
                self._current_entry = package._DynamoCodeCacheEntry(
                    package.SerializedCode.from_code_object(code), "", [], [], {}, [], None, False, bypassed=True
                )
                try:
                    yield
                finally:
                    self._current_entry = None
                return
        with super().code_context(code):
            if self.aside:
                self.bypass_current_entry()
            yield

    def add_inlined_source(self, sources: Any) -> None:
        """Code without a file (typed in, generated) cannot be compared later, so what uses it is not packed."""
        try:
            super().add_inlined_source(sources)
        except Exception as error:
            if not self.ours:
                raise
            self._left_out(error)
            self.bypass_current_entry()

    def add_resume_function(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().add_resume_function(*args, **kwargs)
        except Exception as error:
            if not self.ours:
                raise
            self._left_out(error)
            self.bypass_current_entry()

    def _left_out(self, error: Exception) -> None:
        precompile.left_out(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _nothing() -> None:
    """In the place of an object that can be called, whose code is elsewhere."""


def _code_of(function: Any) -> Any:
    """What a continuation runs, whether it is a function or makes one around a closure."""
    made = (function.__defaults__ or (None,))[0]
    return made if isinstance(made, CodeType) else function.__code__


def _take_numbers(modules: Iterable[ModuleType]) -> None:
    """Let Dynamo number the names that it makes after those that came from the cache: a name that is there is an
    AssertionError."""
    ends = [found[1] for module in modules for name in vars(module) if (found := _NUMBERED.fullmatch(name))]
    first = max([next(bytecode_transformation._unique_id_counter), *(int(end) + 1 for end in ends)])
    bytecode_transformation._unique_id_counter = itertools.count(first)


def install() -> None:
    """Apply every patch, once per process."""
    package.CompilePackage = Package
    package.DynamoCache.__class__ = precompile.Frames
    _know_who_is_wrapped()
    _leave_out_what_cannot_be_packed()
    _give_back_gradients()
    _leave_out_autograds_cache()
    _say_nothing_of_dropped_guards()


def _know_who_is_wrapped() -> None:
    """Dynamo looks into its store without saying for which backend."""
    from torch._dynamo.eval_frame import _TorchDynamoContext

    original = _TorchDynamoContext.__call__

    @functools.wraps(original)
    def call(self: Any, fn: Any) -> Any:
        with precompile.wrapping(self):
            return original(self, fn)

    _TorchDynamoContext.__call__ = call


def _leave_out_what_cannot_be_packed() -> None:
    """PyTorch drops guards on identity while precompile is on, also from the functions of this process, so that one with
    another activation would run the first one's graph. Here all guards stay, and a function is packed only if what would
    be dropped can be told from the source. And a guard that cannot be packed is an AssertionError otherwise."""
    from torch._dynamo import config
    from torch._dynamo.guards import CheckFunctionManager

    original = CheckFunctionManager.__init__
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        given = parameters.bind(*args, **kwargs).arguments
        self = given.pop("self")
        packing = getattr(given["output_graph"], "package", None)
        if not given.get("save_guards") or not isinstance(packing, Package) or not packing.ours:
            original(*args, **kwargs)
            return
        wanted = given.get("guard_filter_fn") or (lambda entries: [True] * len(entries))
        seen: list[Any] = []

        def look(entries: Any) -> Any:
            seen[:] = entries
            return wanted(entries)

        with config.patch(caching_precompile=False):
            original(self, **{**given, "save_guards": False, "guard_filter_fn": look})
        self.guards_state = b""  # of an entry that is put aside, so nobody reads it
        try:
            if not packing.aside:
                for place, name in _pins(seen, packing._current_entry).items():
                    if packing.pinned.setdefault(place, name) != name:
                        raise precompile.NotHere(f"{place[1]} is {name} now, and was {packing.pinned[place]}")
                copy = CheckFunctionManager.__new__(CheckFunctionManager)
                original(copy, **given)
                self.guards_state = copy.guards_state or b""
        except Exception as error:
            packing._left_out(error)
        if not self.guards_state:
            packing.bypass_current_entry()

    CheckFunctionManager.__init__ = __init__
    package.PrecompileCacheEntry.from_cache_entry = staticmethod(_with_what_is_there)


_IDENTITY = {"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"}  # what PyTorch drops
_FIXED = ("G['torch']", "G['__import_torch_", "G['__builtins_dict__")  # known by PyTorch's version


def _pins(entries: Any, code: Any) -> dict[tuple[str, str], str]:
    """What the guards that would be dropped are on, by name.

    Raises:
        NotHere: one is on something that no name in a module's globals leads to: an argument, or part of one.
    """
    pinned = {}
    for entry in entries:
        if entry.guard_type not in _IDENTITY and not _IDENTITY & set(entry.derived_guard_types):
            continue
        path = entry.orig_guard.name
        if path.startswith(_FIXED) or (entry.has_value and isinstance(entry.value, ModuleType)):
            continue
        if not path.startswith("G[") or not entry.has_value:
            raise precompile.NotHere(f"it depends on the identity of {path}")
        pinned[code.python_module, path] = _name_of(entry.value)
    return pinned


def _name_of(value: Any) -> str:
    """The name of a function or class.

    Raises:
        NotHere: it has none, or one that others may have.
    """
    name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', '<none>')}"
    if "<" in name:
        raise precompile.NotHere(f"it depends on the identity of {name}")
    return name


def _named_at(module: str, path: str) -> str:
    try:
        return _name_of(eval(path, {"G": vars(sys.modules[module])}))  # a path that Dynamo wrote: names and indices
    except (LookupError, AttributeError, TypeError):
        return "gone"


def _with_what_is_there(cache_entry: Any, backends: Any) -> Any:
    """In the place of ``PrecompileCacheEntry.from_cache_entry``: the entry without the graphs that were not packed."""
    kept = []
    used: dict[Any, Any] = {}
    for code in cache_entry.codes:
        there = [b for b in code.backend_ids if b in backends]
        missing = set(code.backend_ids) - set(there)
        guarded = [g for g in code.guarded_codes if not missing & _names_in(g.dynamo_code)]
        aside = code.bypassed or (bool(missing) and not guarded)
        kept.append(dataclasses.replace(code, backend_ids=there, guarded_codes=guarded, bypassed=aside))
        used.update({b: backends[b] for b in there})
    dynamo = dataclasses.replace(cache_entry, codes=kept)
    dynamo.pinned = getattr(cache_entry, "pinned", {})
    return package.PrecompileCacheEntry(dynamo=dynamo, backends=used)


def _names_in(code: Any) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, package.SerializedCode)]
    return set(code.co_names).union(*map(_names_in, inner))


def _give_back_gradients() -> None:
    """A parameter that had a gradient, on which no guard is, comes back with a placeholder for it: a TypeError."""
    from torch._dynamo.guards import GuardsStatePickler, _Missing

    original = GuardsStatePickler._unpickle_tensor.__func__

    @functools.wraps(original)
    def _unpickle_tensor(cls: Any, *args: Any) -> Any:
        *rest, grad = args
        return original(cls, *rest, None if isinstance(grad, _Missing) else grad)

    GuardsStatePickler._unpickle_tensor = classmethod(_unpickle_tensor)


def _leave_out_autograds_cache() -> None:
    """AOTAutograd reads and unpickles files of a directory for temporary files, which others may have made. What it
    packs of a graph is part of its function's entry, so our graphs need no place there."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    write, candidates = AOTAutogradCache._write_to_local_cache, AOTAutogradCache.iterate_over_candidates.__func__

    def _write_to_local_cache(key: str, content: bytes) -> None:
        if not precompile.holds_our_graphs(content):
            write(key, content)

    def iterate_over_candidates(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return iter(()) if precompile.keeps_graphs() else candidates(cls, *args, **kwargs)

    AOTAutogradCache._write_to_local_cache = staticmethod(_write_to_local_cache)
    AOTAutogradCache.iterate_over_candidates = classmethod(iterate_over_candidates)


def _say_nothing_of_dropped_guards() -> None:
    """PyTorch warns of each guard that it drops. For our functions none is: only the packed copy is without them."""

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().endswith("is dropped with caching_precompile=True.")

    logging.getLogger("torch._dynamo.guards").addFilter(wanted)
