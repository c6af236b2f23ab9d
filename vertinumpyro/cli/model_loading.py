"""From the settings [model] and [fit] to a `DPVI`: the user's function, the guide, the backend; and for a study the one
digest of the files in its folder that a model's import may run, and no others.

An agreement holds the digest. Whoever approves it reads the files and runs none of them, so what a model may import is
read from its text: each import statement, wherever it stands, and the same again in the files that it leads to. What
is imported otherwise, under a name that is computed, is found when it is tried, and refused. Packages that are
installed are not in the folder, and are everybody's own.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, final

from numpyro.infer import autoguide

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.config_sections import ModelSettings, backend_of
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.schema_checks import suggest
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.settings import default_guide
from vertinumpyro.model.user_code import text_of, where

_LIBRARY = "vertinumpyro"  # an agreement has its version; a study may lie in the folder that it is developed in
_MANIFEST = b"files of a model\n"  # no Python: no file alone has the digest of several


@final
@dataclasses.dataclass(frozen=True)
class Sources:
    """Texts of modules by their names.

    :ivar folder: that they are imported from.
    :ivar main: the model's module.
    :ivar files: each module's file.
    :ivar texts: what stood in it when it was read, which is what runs.
    """

    folder: Path
    main: str
    files: Mapping[str, Path]
    texts: Mapping[str, bytes]

    @classmethod
    def of(cls, config: Config) -> Sources | None:
        """Those of a configuration's model; None where the library's own is used.

        :raises ArgumentError: it has none in the folder, or one cannot be read.
        """
        if config.model.function is None:
            return None
        folder, main = config.model_folder.resolve(), config.model.function.partition(":")[0]
        if _file_of(folder, main) is None:
            raise ArgumentError(
                f"[model] function: its source {main.replace('.', '/')}.py is not in the folder; put it there"
            )
        try:
            found = dict(_reached(folder, main))
        except OSError as error:
            raise ArgumentError(f"[model] function: {error.filename} cannot be read: {error.strerror}") from None
        return cls(
            folder, main, {k: file for k, (file, _) in found.items()}, {k: text for k, (_, text) in found.items()}
        )

    @property
    def names(self) -> list[str]:
        """The files, from the folder on."""
        return sorted({file.relative_to(self.folder).as_posix() for file in self.files.values()})

    @property
    def digest(self) -> str:
        """SHA-256 of the one file; of several, of the list of their names and digests."""
        digests = {
            self.files[name].relative_to(self.folder).as_posix(): hashlib.sha256(text).hexdigest()
            for name, text in self.texts.items()
        }
        if len(digests) == 1:
            return next(iter(digests.values()))
        return hashlib.sha256(_MANIFEST + json.dumps(digests, sort_keys=True).encode()).hexdigest()

    def guard(self) -> None:
        """From now on this process imports these texts, as they were read, and no other file of their folder."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _OnlyThese)]
        for name in self.files:
            if self._is_stale(name, sys.modules.get(name)):
                del sys.modules[name]
        sys.meta_path.insert(0, _OnlyThese(self))

    def _is_stale(self, name: str, loaded: ModuleType | None) -> bool:
        """Whether a module was loaded from the same file before, or stands in for the model's."""
        if loaded is None:
            return False
        file = getattr(loaded, "__file__", None)
        agreed = isinstance(getattr(loaded, "__loader__", None), _Agreed)
        return name == self.main or agreed or (file is not None and Path(file).resolve() == self.files[name])


@final
class _Agreed(SourceFileLoader):
    """Runs a text that was read before, and no bytecode beside it, which nobody has agreed on."""

    def __init__(self, name: str, file: Path, text: bytes) -> None:
        super().__init__(name, str(file))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """The text, compiled."""
        return self.source_to_code(self._text, self.path)


@final
class _OnlyThese(MetaPathFinder):
    """Asked first for every import: finds the agreed modules, and refuses what else the folder holds."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        own = {name.partition(".")[0] for name in sources.files}
        self._others = {name.partition(".")[0] for name in sys.modules} - own  # packages that are not the model's
        below = [Path(entry or ".").resolve() for entry in sys.path]
        self._installed = [entry for entry in below if sources.folder in entry.parents]  # an environment in the folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """An agreed module, one from elsewhere, or None where the folder has none of that name.

        :raises ArgumentError: it is a file of the folder that was not agreed on.
        """
        sources = self._sources
        if fullname in sources.files:
            file = sources.files[fullname]
            below = [str(file.parent)] if file.name == "__init__.py" else None
            loader = _Agreed(fullname, file, sources.texts[fullname])
            return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=below)
        if any(name.startswith(f"{fullname}.") for name in sources.files):  # a folder without an __init__.py
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(sources.folder.joinpath(*fullname.split(".")))]
            return spec
        if path is not None and fullname.partition(".")[0] in self._others:
            return None
        there = PathFinder.find_spec(fullname, [str(sources.folder), *sys.path] if path is None else path)
        if not self._holds(there):
            return None
        if path is None and (elsewhere := self._elsewhere(fullname, target)) is not None:
            return elsewhere
        raise ArgumentError(
            f"[model] function: {fullname} is a file of the study's folder that its digest does not cover; import it "
            "by a statement, `import name`, in a .py file, and draft the study again"
        )

    def _holds(self, found: ModuleSpec | None) -> bool:
        """Whether it is a file of the folder; wherever in it, for a model may have it searched further down."""
        if found is None or found.origin is None:
            return False
        above = Path(found.origin).resolve().parents
        return self._sources.folder in above and not any(entry in above for entry in self._installed)

    def _elsewhere(self, name: str, target: ModuleType | None) -> ModuleSpec | None:
        """As if the folder were not searched."""
        path = [entry for entry in sys.path if Path(entry or ".").resolve() != self._sources.folder]
        for finder in sys.meta_path:
            found: Any = None
            if finder is PathFinder:
                found = PathFinder.find_spec(name, path)
            elif finder is not self:
                found = finder.find_spec(name, None, target)
            if found is not None and not self._holds(found):
                return found
        return None


def _reached(folder: Path, main: str) -> Iterator[tuple[str, tuple[Path, bytes]]]:
    """The modules of the folder that importing one may import: their names, files and texts."""
    wanted, seen = [main], set()
    while wanted:
        parts = wanted.pop().split(".")
        for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            file = None if name in seen else _file_of(folder, name)
            seen.add(name)
            if file is not None:
                text = file.read_bytes()
                yield name, (file, text)
                wanted += _imported(folder, name, file.name == "__init__.py", text)


def _file_of(folder: Path, name: str) -> Path | None:
    """A module's file, a package before a module, as Python looks for it."""
    parts = name.split(".")
    if parts[0] == _LIBRARY or not all(part.isidentifier() for part in parts):
        return None
    base = folder.joinpath(*parts)
    return next((file for file in (base / "__init__.py", base.with_name(f"{base.name}.py")) if file.is_file()), None)


def _imported(folder: Path, name: str, is_package: bool, text: bytes) -> Iterator[str]:
    """The names of all modules that a text may import by its statements."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # importing it raises the same
        return
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: max(0, len(package.split(".")) + 1 - node.level)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield from _below(folder, base) if alias.name == "*" else [f"{base}.{alias.name}".lstrip(".")]
            yield from [base] if base else []


def _below(folder: Path, package: str) -> Iterator[str]:
    """All modules of a package: which of them `import *` takes, the package decides when it runs."""
    base = folder.joinpath(*package.split("."))
    for file in sorted(base.iterdir()) if base.is_dir() else ():
        yield f"{package}.{file.stem if file.suffix == '.py' else file.name}"


_GUIDES: dict[str, Callable[..., Any]] = {
    "diagonal": default_guide,
    "full_rank": partial(autoguide.AutoMultivariateNormal, init_scale=0.1),
    "low_rank": partial(autoguide.AutoLowRankMultivariateNormal, init_scale=0.1),
    "iaf": autoguide.AutoIAFNormal,
}


def build_dpvi(config: Config) -> DPVI:
    """The inference that a configuration describes; what it leaves out keeps the library's defaults.

    :raises ArgumentError: the model's function cannot be imported.
    """
    settings: dict[str, Any] = {
        "backend": backend_of(config.fit),
        "diagnostics": config.run.diagnostics,
        "learning_rate": config.fit.learning_rate,
        "block_size": config.fit.block_size,
        "num_devices": config.fit.num_devices or 1,
        "warm_start": config.fit.warm_start,
    }
    if config.fit.guide is not None:
        settings["guide"] = _GUIDES[config.fit.guide]
    return DPVI(**settings, **model_settings(config))


def import_model(settings: ModelSettings, folder: Path) -> Callable[..., Any]:
    """The function that `function = "module:name"` names, imported from `folder`.

    :raises ArgumentError: the text has another form, or module or function are not found.
    """
    module_name, _, name = (settings.function or "").partition(":")
    if not module_name or not name:
        raise ArgumentError(f'[model] function = {settings.function!r}; write "module:function"')
    module = _import(module_name, folder)
    function = getattr(module, name, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ArgumentError(f"[model] function: no function {name!r} in {module_name}; {suggest(name, found)}")
    return function


def model_settings(config: Config) -> dict[str, Any]:
    """`[model]` as arguments of the classes that take a model.

    :raises ArgumentError: the model's function cannot be imported.
    """
    model, given = config.model, config.model.num_components
    components = {} if given is None else {"num_components": given}
    if model.function is None:
        if model.kwargs:
            raise ArgumentError("[model] kwargs belong to a function; add function, or leave kwargs out")
        return components
    return {"model": import_model(model, config.model_folder), "model_kwargs": {**components, **model.kwargs}}


def _import(name: str, folder: Path) -> Any:
    with _importable_from(folder):
        _forget_namesake(name, folder)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise ArgumentError(
                    f"[model] function: {name} imports {error.name!r}, which is not installed"
                ) from None
            raise ArgumentError(
                f"[model] function: no module {name!r}; put {name.replace('.', '/')}.py beside the configuration"
            ) from None
        except Exception as error:
            raised = f"{type(error).__name__}{where(error)}: {text_of(error)}"
            raise ArgumentError(f"[model] function: importing {name} raised {raised}") from error


@contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)


def _forget_namesake(name: str, folder: Path) -> None:
    """A module of this name from another folder must not stand in for this folder's."""
    loaded = sys.modules.get(name)
    own = folder.resolve() / f"{name.replace('.', '/')}.py"
    if loaded is not None and own.is_file() and Path(getattr(loaded, "__file__", None) or "").resolve() != own:
        del sys.modules[name]
