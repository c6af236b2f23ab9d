"""`party_plate`: a record plate that says which party holds the columns observed inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpyro
from numpyro import handlers, primitives

__all__ = ["PARTY", "RECORDS_PLATE", "party_plate"]

RECORDS_PLATE = "records"
"""Name of the record plate in every model; `party_plate` opens the same plate again."""

PARTY = "party"
"""Key under which a site's `infer` dictionary holds the name of its party."""


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
    the model opened before.

    :param party: the party's name, as in the schema.
    :param size: number of records.
    :param subsample_size: as in `numpyro.plate`; give it to the `records` plate too.
    """
    indices = _indices_of_open_records_plate() if subsample_size not in (None, size) else None
    shared = nullcontext() if indices is None else handlers.substitute(data={RECORDS_PLATE: indices})
    with _MarkParty(party), shared:
        plate = numpyro.plate(RECORDS_PLATE, size, subsample_size, dim=-1)
    with _MarkParty(party), plate as batch:
        yield batch


def _indices_of_open_records_plate() -> Any:
    """The batch indices that the model's own `records` plate drew, if a trace has seen it."""
    for messenger in primitives._PYRO_STACK:
        site = getattr(messenger, "trace", {}).get(RECORDS_PLATE)
        if site is not None and site["type"] == "plate":
            return site["value"]
    return None
