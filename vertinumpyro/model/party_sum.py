"""`party_sum`: a linear predictor to which several parties contribute, each from its own columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import primitives

from vertinumpyro.core.errors import ModelContractError

__all__ = ["PartySums", "party_sum"]

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
