"""From the settings [model] and [fit] to a `DPVI`: the user's function, the guide, the backend."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from numpyro.infer import autoguide

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.config_sections import ModelSettings
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.wording import suggest
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.settings import default_guide
from vertinumpyro.model.user_code import text_of, where
from vertinumpyro.secure import BACKENDS

__all__ = ["build_dpvi", "import_model", "model_settings"]

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
        "backend": BACKENDS[config.fit.backend](),
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
