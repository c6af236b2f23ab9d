"""Which method a configuration means where nobody names one, and why: from public facts alone.

Short because it is one decision, which approvals and plans quote.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple, final

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods.base import CommandMethod, given, method_of
from vertinumpyro.core.errors import ArgumentError, ModelContractError
from vertinumpyro.data import TableFacts
from vertinumpyro.mrf.field import has_engine

__all__ = ["Choice", "chosen"]

_MANY_RECORDS = 10**6  # where nothing is known of N: more records, more cells are worth measuring
_OF_DPVI = {
    "fit": (
        *("num_steps", "batch_size", "clip_norm", "clip", "residual_bound"),
        *("guide", "learning_rate", "block_size", "num_devices", "warm_start"),
    ),
    "privacy": ("noise_multiplier", "batch_indices"),
}
_ENGINE = "`pip install 'vertinumpyro[mrf]'`"


@final
class Choice(NamedTuple):
    """A method and the reason for it, in words."""

    name: str
    why: str


def chosen(config: Config) -> Choice:
    """The method: as `[run] method` says, or else the best that can be had.

    One release of tables pays once where DPVI pays for every step, so its twins are nearer at the same ε wherever the
    model has tables: through a Markov field where no model is given, through the model where one is. DPVI is for all
    other models, for tables too wide to be measured, and where the settings are DPVI's own.
    """
    if config.run.method is not None:
        return Choice(config.run.method, "[run] method says so")
    if config.quality.twin is not None:
        return Choice("quality", "[quality] twin is a table to compare")
    if config.data.holders:
        if config.regression.label is None:
            return Choice("horizontal", "the holders have whole records")
        return Choice("bayesian_linear", "the holders have whole records, and [regression] label is to be predicted")
    if config.regression.label is not None:
        raise ArgumentError("[regression] is set: name the regression, --method logistic or --method linear")
    for section, names in _OF_DPVI.items():
        if own := [name for name in names if name in given(getattr(config, section))]:
            return Choice("dpvi", f"[{section}] {own[0]} is a setting of DPVI's")
    if config.model.function is None and config.model.num_components is None and has_engine():
        wanted = Choice("vertimrf", "no model is given, and a Markov field of noisy tables makes the nearest twins")
    else:
        why = "tables are paid for once, where DPVI pays for every step"
        wanted = Choice("marginals", why if has_engine() else f"{why}; {_ENGINE} makes nearer twins")
    refused = _refusal(wanted, config)
    return wanted if refused is None else Choice("dpvi", f"{wanted.name} cannot be had here: {refused}")


def _refusal(wanted: Choice, config: Config) -> str | None:
    """Why a method's plan cannot be made for any table of this schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plan that is kept says what there is to say
        try:
            method: CommandMethod = method_of(wanted.name)(config)
            method.plan(TableFacts(config.schema, config.data.num_records or _MANY_RECORDS))
        except (ArgumentError, ModelContractError) as error:
            return str(error)
    return None
