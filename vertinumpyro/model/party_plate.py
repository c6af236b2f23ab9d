"""`party_plate`: a record plate that says which party holds the columns observed inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro import handlers, primitives

__all__ = ["MOST_COMPONENTS", "PARTY", "RECORDS_PLATE", "party_plate"]

MOST_COMPONENTS = 2000
"""Each has its own parameters, and which are its own is found one by one."""

RECORDS_PLATE = "records"
"""Name of the record plate in every model; `party_plate` opens the same plate again."""

PARTY = "party"
"""Key under which a site's `infer` dictionary holds the name of its party."""

_BATCH = "_vertinumpyro_batch"


class _MarkParty(primitives.Messenger):
    """Writes the party's name into the `infer` dictionary of every sample site inside."""

    def __init__(self, party: str) -> None:
        super().__init__(None)
        self._party = party

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample":
            msg["infer"] = {**(msg["infer"] or {}), PARTY: self._party}


@contextmanager
def party_plate(party: str, size: int, subsample_size: int | None = None) -> Iterator[Any]:
    """The record plate, for sites that `party` observes.

    It is NumPyro's `plate("records", size)` opened again, plus a mark, so the same model runs under `SVI`,
    `NUTS` and `Predictive` on pooled data: an enumerated record-level latent is summed out over all
    parties' sites together. With `subsample_size` it shares the batch indices of the `records` plate that
    the model opened before. Under enumeration (`TraceEnum_ELBO`) only the party plates can share theirs, so
    index every column by what `party_plate` yields.

    :param party: the party's name, as in the schema.
    :param size: number of records.
    :param subsample_size: as in `numpyro.plate`; give it to the `records` plate too.
    """
    subsampled = subsample_size not in (None, size)
    indices = _batch_of_this_run() if subsampled else None
    shared = nullcontext() if indices is None else handlers.substitute(data={RECORDS_PLATE: indices})
    with _MarkParty(party), shared:
        plate = numpyro.plate(RECORDS_PLATE, size, subsample_size, dim=-1)
    with _MarkParty(party), plate as batch:
        if subsampled:
            _remember_batch(jnp.reshape(batch, -1))
        yield batch


def _batch_of_this_run() -> Any:
    """The batch indices of the model's `records` plate, or else of the party plates before this one."""
    for messenger in _traces():
        plate = messenger.trace.get(RECORDS_PLATE)
        if plate is not None and plate["type"] == "plate":
            return plate["value"]
        remembered = getattr(messenger, _BATCH, None)
        if remembered is not None and remembered[0] is messenger.trace:
            return remembered[1]
    return None


def _remember_batch(indices: Any) -> None:
    """Keep the batch for the run's other parties: the trace that enumeration uses records no plates.

    It is kept beside the trace of the run, because a handler may be run again and then traces anew.
    """
    for messenger in _traces():
        setattr(messenger, _BATCH, (messenger.trace, indices))


def _traces() -> list[handlers.trace]:
    return [m for m in primitives._PYRO_STACK if isinstance(m, handlers.trace)]
