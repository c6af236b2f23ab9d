"""Records that are nobody's: what a model is checked on in place of data, so that errors may quote them, in one call
for all records and in a call for each; and data in which nothing is observed.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.compat import compiled_fast
from vertinumpyro.core.errors import ModelContractError, VertinumpyroError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.enumeration import Site, log_densities, trace_at
from vertinumpyro.model.record_dependence import LATENT, Dependence, depends_on, one_record_each, records_read
from vertinumpyro.model.user_code import text_of, where

# What jax raises where Python asks for a value that is being traced.
_ASKS_FOR_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def stand_in_columns(
    schema: Schema, num_records: int, seed: int = 0, *, observed_fraction: float = 1.0
) -> dict[str, np.ndarray]:
    """Valid columns drawn from the schema's public domains: what a party sees in place of another's data.

    :param observed_fraction: of the values of each masked column.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {}
    for name, column in schema.columns.items():
        columns[name] = column.example(num_records, rng)
        if column.masked:
            columns[f"{name}{OBSERVED_SUFFIX}"] = rng.random(num_records) < observed_fraction
    return columns


@contextmanager
def errors_on_stand_ins() -> Iterator[None]:
    """Where the user's function runs on stand-ins: whatever it raises is a broken contract, and says which error.

    The message may quote the exception, because the function has seen no table.
    """
    try:
        yield
    except VertinumpyroError:
        raise
    except _ASKS_FOR_VALUES as error:
        raise ModelContractError(
            f"the model{where(error)} uses a column or a latent as a plain Python number, array or condition (see the "
            "cause above), as np.unique, int(), if and x[x > 0] do; use jnp.where and the like, and pass public "
            "numbers, such as how many groups the schema allows, in model_kwargs"
        ) from error
    except Exception as error:
        raise ModelContractError(
            f"the model raised {type(error).__name__} on stand-in records{where(error)}: {text_of(error)}"
        ) from error


def check_signature(model: Model, model_kwargs: Mapping[str, Any]) -> None:
    """Refuse a model that cannot be called as `model(data, num_records, **model_kwargs)`.

    :raises ModelContractError: with the signature to write.
    """
    try:
        signature = inspect.signature(model)
    except ValueError:
        return  # some callables hide theirs; the call itself will tell
    try:
        signature.bind({}, 1, **model_kwargs)
    except TypeError as error:
        arguments = ", ".join(["data", "num_records", *model_kwargs])
        raise ModelContractError(
            f"the model cannot be called as model({arguments}): {error}; write `def model({arguments}):`, or change "
            "model_kwargs, which gives what stands after num_records"
        ) from None


NUM_RECORDS = 31

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandInRuns:
    """Both programs, for arguments (theta, columns [NUM_RECORDS]) as `theta` and `columns` draw them.

    They compute in double precision, so that what rounding changes and what the model changes are far apart.
    A model that insists on single precision is compiled in the user's own.

    :ivar latents: unconstrained shape of each global latent.
    :ivar of_records: the parties' observed sites, and the component site if there is one.
    :ivar in_double: whether the programs compute in double precision.
    """

    model: Model
    schema: Schema
    latents: Mapping[str, tuple[int, ...]]
    component_site: str | None
    num_components: int
    of_records: tuple[str, ...]
    in_double: bool = True
    _programs: Mapping[str, Future[Callable[..., Any]]] = dataclasses.field(default_factory=dict, repr=False)
    _together: Any = dataclasses.field(default=None, repr=False)

    def compiled(self) -> StandInRuns:
        """With both programs, in double precision if the model can be traced in it.

        They are compiled in the background, while the caller goes on tracing.
        """
        try:
            return self._compiled()
        except Exception:
            return dataclasses.replace(self, in_double=compat.user_has_x64())._compiled()

    def _compiled(self) -> StandInRuns:
        arguments = self.theta(0), self.columns(0)
        with compat.precision(self.in_double):
            together = jax.jit(self._densities_together)  # traced once, for its text and in the program

            def _all_together(theta: Mapping[str, Any], columns: Mapping[str, Any]) -> jax.Array:
                return self._stacked(together(theta, columns))

            (called,) = jax.make_jaxpr(together)(*arguments).eqns
            lowered = {fn.__name__: jax.jit(fn).lower(*arguments) for fn in (self._each_alone, _all_together)}
        background = ThreadPoolExecutor(1)  # the compiler lets go of the interpreter
        programs = {name: background.submit(compiled_fast, program) for name, program in lowered.items()}
        background.shutdown(wait=False)
        return dataclasses.replace(self, _programs=programs, _together=called.params["jaxpr"])

    def dependence(self) -> dict[str, Dependence]:
        """Which records each log density [K, n] of `together` may depend on, by site."""
        theta = [depends_on(LATENT, np.shape(value)) for value in jax.tree_util.tree_leaves(self.theta(0))]
        records = depends_on(one_record_each(NUM_RECORDS))
        found = records_read(self._together, [*theta, *[records] * len(self.columns(0))])
        return dict(zip(sorted(self.of_records), found, strict=True))

    # -- arguments --------------------------------------------------------------------------------

    def theta(self, seed: int, scale: float = 0.5) -> dict[str, np.ndarray]:
        """Random unconstrained latents."""
        rng = np.random.default_rng(seed)
        return {name: rng.normal(0.0, scale, shape).astype(self._dtype) for name, shape in self.latents.items()}

    def columns(self, seed: int, num_records: int = NUM_RECORDS) -> dict[str, np.ndarray]:
        """Random columns, half of what may be missing missing."""
        columns = stand_in_columns(self.schema, num_records, seed, observed_fraction=0.5)
        return {n: column.astype(self._dtype) if column.dtype.kind == "f" else column for n, column in columns.items()}

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float64 if self.in_double else np.float32

    # -- programs ---------------------------------------------------------------------------------

    def together(self, theta: Arrays, columns: Arrays) -> Arrays:
        """Log densities [K, n] of the record-level sites, from one call of the model."""
        return self._by_site("_all_together", theta, columns)

    def alone(self, theta: Arrays, columns: Arrays) -> Arrays:
        """The same from a call for each record, with num_records = 1: what the parties compute."""
        return self._by_site("_each_alone", theta, columns)

    def globals_at(self, num_records: int) -> tuple[str, Callable[[Arrays], dict[str, tuple[np.ndarray, ...]]]]:
        """Every other sample site's summed log density, and its value if it is a latent, as a function of theta.

        :returns: the program's text, in which nothing stands that these numbers do not need, and the function.
        """
        columns = self.columns(0, num_records)
        with compat.precision(self.in_double):
            lowered = jax.jit(partial(self._globals, num_records)).lower(self.theta(0), columns)
        return lowered.as_text(), lambda theta: self._run(lowered.compile(), theta, columns)

    def _by_site(self, program: str, theta: Arrays, columns: Arrays) -> Arrays:
        found = self._run(self._programs[program].result(), theta, columns)
        return dict(zip(self.of_records, found, strict=True))

    def _run(self, program: Callable[..., Any], theta: Arrays, columns: Arrays) -> Any:
        with compat.precision(self.in_double):
            return jax.device_get(program(theta, columns))

    def _trace(self, theta: Mapping[str, Any], columns: Mapping[str, Any], num_records: int) -> dict[str, Site]:
        return trace_at(self.model, theta, self.component_site, columns, num_records)

    def _densities_together(self, theta: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, jax.Array]:
        trace = self._trace(theta, columns, NUM_RECORDS)
        return log_densities(trace, self.of_records, self.num_components, NUM_RECORDS)

    def _each_alone(self, theta: Mapping[str, Any], columns: Mapping[str, Any]) -> jax.Array:
        def of_record(row: Mapping[str, Any]) -> dict[str, jax.Array]:
            trace = self._trace(theta, {name: value[None] for name, value in row.items()}, 1)
            found = log_densities(trace, self.of_records, self.num_components, 1)
            return {name: log_density[:, 0] for name, log_density in found.items()}

        return self._stacked(jax.vmap(of_record, out_axes=1)(columns))

    def _stacked(self, log_densities: Mapping[str, jax.Array]) -> jax.Array:
        """All sites in one array: it is fetched once, where hundreds of them take longer than the program."""
        return jnp.stack([log_densities[name] for name in self.of_records])

    def _globals(self, num_records: int, theta: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
        trace = self._trace(theta, columns, num_records)
        sites = {n: site for n, site in trace.items() if site["type"] == "sample" and n not in self.of_records}
        return {
            name: (site["fn"].log_prob(site["value"]).sum(), *([] if site["is_observed"] else [site["value"]]))
            for name, site in sites.items()
        }


@final
class Unobserved(Mapping[str, Any]):
    """Stands for every column at once, without a value: `data["age"]` is None, so the site is drawn.

    A mask `data["age_observed"]` is True: what is drawn has no missing values. Columns are not listed,
    because it has no schema; a model that indexes a column (`data["age"][batch]`) cannot run on it.

    >>> UNOBSERVED["age"] is None, UNOBSERVED["age_observed"]
    (True, True)
    """

    def __getitem__(self, column: str) -> bool | None:
        """None for a column, True for the mask of one."""
        return True if column.endswith(OBSERVED_SUFFIX) else None

    def __iter__(self) -> Iterator[str]:
        """Nothing to iterate over."""
        return iter(())

    def __len__(self) -> int:
        """Number of observed columns: none."""
        return 0

    def __bool__(self) -> bool:
        """True, so that `data or {}` keeps it."""
        return True

    def __repr__(self) -> str:
        return "UNOBSERVED"


UNOBSERVED = Unobserved()
"""Pass it as `data` to draw records: `Predictive(model, posterior)(rng_key, UNOBSERVED, num_records)`."""
