"""`party_plate`, a record plate that says which party holds the columns observed inside it, and `party_sum`, a linear
predictor to which several parties contribute, each from its own columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers, primitives

from vertinumpyro.core.errors import ModelContractError

MOST_COMPONENTS = 2000
"""Each has its own parameters, and which are its own is found one by one."""

RECORDS_PLATE = "records"
"""Name of the record plate in every model; `party_plate` opens the same plate again."""


def is_records(plate: str) -> bool:
    """Whether a plate is the record plate, which `handlers.scope` may have given a prefix."""
    return plate.rpartition("/")[2] == RECORDS_PLATE


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
        plates = [s for name, s in messenger.trace.items() if s["type"] == "plate" and is_records(name)]
        if plates:
            return plates[0]["value"]
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


Parts = Mapping[str, Any]


def party_sum(name: str, parts: Mapping[str, Any]) -> Any:
    r"""The sum over parties of what each contributes to a predictor, \( \eta_n = \sum_p \eta^p_n \).

    In an ordinary run, under `SVI`, `NUTS` or `Predictive` on pooled data, it adds the parts up and does nothing else.
    In a split it is where one party's computation ends and the next one's begins: part p may read global latents and
    the columns of party p, and the sum is never computed in the clear. One observed site, at one party, may depend on
    it, and on no other latent and column besides: what belongs to the predictor goes into its party's part. A latent
    that several parties' parts read is released at each of them, with noise at each, so give each party coefficients
    of its own::

        eta = vnp.party_sum("eta", {"bank": intercept + bank @ b, "telco": telco @ t})
        with vnp.party_plate("bank", num_records):
            numpyro.sample("default", dist.Bernoulli(logits=eta), obs=data["default"])

    A model may have up to six sums, each with an observed site of its own, at any parties and of any families. Their
    parts may read the same latents, or latents whose priors have some in common, as coefficients about a common mean.

    :param name: of the sum, for errors; each sum of a model has another.
    :param parts: each contributing party's part, `[num_records]`, or a number that is the same for all records.
    :returns: the sum, of the parts' common shape.
    :raises ModelContractError: there is no part.
    """
    if not isinstance(parts, Mapping) or not parts:
        raise ModelContractError(
            f"party_sum({name!r}, ...) needs a dictionary of at least one party's part, as {{'bank': x @ b, ...}}"
        )
    total = reduce(lambda so_far, part: so_far + part, parts.values())
    for messenger in reversed(primitives._PYRO_STACK):
        if isinstance(messenger, PartySums):
            return messenger.met(name, parts, total)
    return total


class PartySums(primitives.Messenger):
    """Records the sums of a run; with `values`, the model goes on with these in the sums' place.

    :ivar parts: of each sum, by name, as arrays.
    """

    def __init__(self, fn: Callable[..., Any] | None = None, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(fn)
        self._values = {} if values is None else values
        self.parts: dict[str, dict[str, jax.Array]] = {}

    def met(self, name: str, parts: Parts, total: Any) -> Any:
        """What `party_sum` returns in this run.

        :raises ModelContractError: the run had a sum of this name before.
        """
        if name in self.parts:
            raise ModelContractError(f"there are two party_sums named {name!r}; give each a name of its own")
        self.parts[name] = {party: jnp.asarray(part) for party, part in parts.items()}
        return self._values.get(name, total)
