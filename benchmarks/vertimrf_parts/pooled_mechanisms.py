"""AIM, MST and SWIFT by their authors on pooled codes, accounted for replace.

    PYTHON pooled_mechanisms.py CLONE aim|mst|swift INPUT.npz OUTPUT.npz EPSILON DELTA SEED

CLONE is a clone of `ryan112358/private-pgm`, for SWIFT one of `google/dpsynth`; PYTHON has what it needs, each in an
environment of its own. Their code accounts for adding or removing a record, in zero-concentrated DP. Replacing one
moves a table by √2 instead of 1, so ρ of a Gaussian doubles, and the exponential mechanism's scores by twice as much,
so its ρ is four times as large. AIM spends nine tenths on tables, MST two thirds: what ρ they are given is divided
accordingly.

SWIFT has its defaults for a table of codes: a tenth of ρ on one-way tables, a tenth of the rest on L1 errors of all
triples, pairs and columns, with which it selects, and the rest on tables; no compressed domains. Replacing a record
moves an error by 2 instead of 1, so their ρ is four times as large as well: 2.18 times as much in all. All of its noise
is Gaussian, so the whole is one Gaussian mechanism, for which its authors calibrate ρ to ε and δ, tighter than by way
of zero-concentrated DP; so does `gaussian_rho`, as their search starts at ρ = 0, where their code divides by it.

Where INPUT.npz has `triples` `[T, 3]`, places of columns, OUTPUT.npz has AIM's model's shares in the cells of each, one
after another: its sampler draws a column given those beside it in measured cliques, and may lose what the model has.
SWIFT's draws along its junction tree and loses nothing but by rounding.
"""

import itertools
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ONE_WAY, SELECT = 0.1, 0.1  # SWIFT's shares of the budget
REPLACE_COST = {
    "aim": 0.9 * 2 + 0.1 * 4,
    "mst": (2 * 2 + 4) / 3,
    "swift": ONE_WAY * 2 + (1 - ONE_WAY) * (SELECT * 4 + (1 - SELECT) * 2),
}
MOST_ORDERED_BEST = 11
MOST_CELLS = 2**18  # of all columns together


def bound_search() -> None:
    """More than eleven factors are multiplied in a greedy order; the best one of seventeen takes half an hour to find.

    What comes out is the same up to rounding.
    """
    from opt_einsum import paths  # pyright: ignore[reportMissingImports]

    best = paths.dynamic_programming

    def found(inputs: Any, output: Any, size_dict: Any, memory_limit: Any = None) -> Any:
        search = best if len(inputs) <= MOST_ORDERED_BEST else paths.greedy
        return search(inputs, output, size_dict, memory_limit)

    paths._PATH_OPTIONS["dp"] = found


LogTable = tuple[tuple[str, ...], np.ndarray]
"""Columns, and logarithms with an axis for each."""


def tables_of(potentials: Any) -> list[LogTable]:
    """A model's potentials, in NumPy."""
    return [(tuple(clique), np.asarray(factor.values, np.float64)) for clique, factor in potentials.arrays.items()]


def added(logs: list[LogTable]) -> LogTable:
    """The sum of some tables, over all of their columns, in the order in which they come."""
    names = tuple(dict.fromkeys(name for attrs, _ in logs for name in attrs))
    total = np.zeros((1,) * len(names))
    for attrs, values in logs:
        order = sorted(range(len(attrs)), key=lambda axis: names.index(attrs[axis]))
        sides = dict(zip(attrs, values.shape, strict=True))
        total = total + np.transpose(values, order).reshape([sides.get(name, 1) for name in names])
    return names, total


def counts_of(logs: np.ndarray, total: Any) -> np.ndarray:
    """Cells that come to `total`."""
    weights = np.exp(logs - logs.max())
    return weights * (float(total) / weights.sum())


def sum_joint_table(model_class: Any, factor_class: Any) -> None:
    """Where the table of all columns is small, a model's tables are sums of it, in NumPy.

    AIM asks for some 700 in each round, each of which takes compiled operations of its own: three quarters of its time.
    """
    project, last = model_class.project, []

    def joint_of(model: Any) -> np.ndarray:
        whole = tuple(model.domain.attrs), np.zeros(model.domain.shape)
        return counts_of(added([whole, *tables_of(model.potentials)])[1], model.total)

    def found(model: Any, columns: Any) -> Any:
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        if model.domain.size() > MOST_CELLS:
            return project(model, columns)
        if not last or last[0] is not model:
            last[:] = [model, joint_of(model)]
        names = model.domain.attrs
        kept = [name for name in names if name in columns]
        table = last[1].sum(axis=tuple(axis for axis, name in enumerate(names) if name not in columns))
        return factor_class(model.domain.project(columns), np.transpose(table, [kept.index(name) for name in columns]))

    model_class.project = found


def copy_no_tables(convert: Any) -> None:
    """A factor's table that is an array already stays where it is; each step of a fit copied them all.

    The class holds on to its converter, so this one keeps its place and changes its code.
    """

    def found(values: Any) -> Any:
        import jax

        try:
            return values if isinstance(values, jax.Array) else jax.numpy.asarray(values)
        except TypeError:  # a placeholder of JAX's
            return values

    convert.__code__ = found.__code__


def eliminate_in_numpy(oracles: Any, factor_class: Any) -> None:
    """The tables that a model's cliques do not hold, as their `variable_elimination` finds them, in NumPy.

    Each of its products and sums is compiled for its shapes otherwise, three quarters of AIM's time on wide tables.
    """
    greedy_order = oracles.junction_tree.greedy_order

    def found(potentials: Any, clique: Any, total: float = 1, mesh: Any = None) -> Any:
        del mesh
        domain = potentials.active_domain
        order, _ = greedy_order(domain, [*potentials.cliques, tuple(clique)], elim=domain.invert(clique))
        left = tables_of(potentials)
        for column in order:
            names, logs = added([one for one in left if column in one[0]])
            axis = names.index(column)
            top = logs.max(axis=axis)
            summed = top + np.log(np.exp(logs - np.expand_dims(top, axis)).sum(axis=axis))
            kept = tuple(name for name in names if name != column)
            left = [one for one in left if column not in one[0]] + [(kept, summed)]
        wanted = potentials.domain.project(clique)
        _, logs = added([(tuple(wanted.attrs), np.zeros(wanted.shape)), *left])
        return factor_class(wanted, counts_of(logs, total))

    oracles.variable_elimination = found


def gaussian_rho(epsilon: float, delta: float) -> float:
    """The largest ρ of a Gaussian mechanism that is (ε, δ)-DP."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(mu: float) -> float:
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(np.exp(above) * -np.expm1(below - above)) - delta

    return float(brentq(excess, 1e-4, 100.0)) ** 2 / 2  # pyright: ignore[reportArgumentType]


def by_swift(
    codes: np.ndarray, cells: list[int], epsilon: float, delta: float, seed: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Codes of SWIFT's twin, and no model's tables."""
    import mbi  # pyright: ignore[reportMissingImports]
    from dpsynth.discrete_mechanisms import DiscreteConfig, SWIFTConfig  # pyright: ignore[reportMissingImports]

    # As many records as the table has, which is public; theirs are as many as noisy tables say.
    draw, done = mbi.extensions.synthetic_data, Future()  # pyright: ignore[reportAttributeAccessIssue]
    mbi.extensions.synthetic_data = lambda model, _: draw(model, len(codes), seed)  # pyright: ignore[reportAttributeAccessIssue]
    # What they compile ahead for the sampler, it compiles again.
    done.set_result(None)
    mbi.extensions.precompile = lambda *_: done  # pyright: ignore[reportAttributeAccessIssue]

    names = column_names(codes)
    domain = mbi.Domain(names, cells)  # pyright: ignore[reportArgumentType]
    data = mbi.Dataset(dict(zip(names, codes.T, strict=True)), domain)  # pyright: ignore[reportArgumentType]
    swift = DiscreteConfig(SWIFTConfig(select_budget_frac=SELECT), one_way_budget_fraction=ONE_WAY)
    rho = gaussian_rho(epsilon, delta) / REPLACE_COST["swift"]
    drawn = swift.configure(zcdp_rho=rho)(np.random.default_rng(seed), data).synthetic_data.to_dict()
    return np.column_stack([np.asarray(drawn[name]) for name in names]), {}


def by_private_pgm(
    name: str, codes: np.ndarray, cells: list[int], epsilon: float, delta: float, triples: np.ndarray | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Codes of AIM's or MST's twin, and AIM's model's tables where asked."""
    bound_search()
    import aim  # pyright: ignore[reportMissingImports]
    import mst  # pyright: ignore[reportMissingImports]
    from cdp2adp import cdp_rho  # pyright: ignore[reportMissingImports]
    from mbi import (  # pyright: ignore[reportMissingImports]
        Dataset,
        Domain,
        Factor,
        MarkovRandomField,
        factor,
        marginal_oracles,
    )

    sum_joint_table(MarkovRandomField, Factor)
    eliminate_in_numpy(marginal_oracles, Factor)
    copy_no_tables(factor._try_convert)  # pyright: ignore[reportAttributeAccessIssue]

    names = column_names(codes)
    data = Dataset(pd.DataFrame(codes, columns=names), Domain(names, cells))  # pyright: ignore[reportArgumentType]
    tables = {}
    rho = cdp_rho(epsilon, delta) / REPLACE_COST[name]
    if name == "aim":
        mechanism = aim.AIM(epsilon, delta)
        mechanism.rho = rho
        workload = [(triple, 1.0) for triple in itertools.combinations(names, 3)]
        model, twin = mechanism.run(data, workload, num_synth_rows=len(codes))
        if triples is not None:
            asked = [tuple(names[place] for place in triple) for triple in triples.tolist()]
            shares = [np.asarray(model.project(triple).datavector(), np.float64) for triple in asked]
            tables["tables"] = np.concatenate([share / share.sum() for share in shares])
    else:
        mst.cdp_rho = lambda *_: rho
        twin = mst.MST(data, epsilon, delta)
    frame = twin.df[names].sample(len(codes), replace=len(twin.df) < len(codes))
    return frame.to_numpy(), tables


def column_names(codes: np.ndarray) -> list[str]:
    """Of a table that has none."""
    return [f"c{i}" for i in range(codes.shape[1])]


def main() -> None:
    """Read codes `[N, d]` and cells `[d]`, write synthetic codes `[N, d]`, and a model's tables where asked."""
    clone, name, source, target, *numbers = sys.argv[1:]
    epsilon, delta, seed = float(numbers[0]), float(numbers[1]), int(numbers[2])
    np.random.seed(seed)  # their generator
    stored = np.load(source)
    codes, cells = stored["codes"], stored["cells"].tolist()
    if name == "swift":
        sys.path.insert(0, clone)
        drawn, tables = by_swift(codes, cells, epsilon, delta, seed)
    else:
        sys.path.insert(0, str(Path(clone, "mechanisms")))
        drawn, tables = by_private_pgm(name, codes, cells, epsilon, delta, stored.get("triples"))
    np.savez(target, codes=drawn.astype(np.int64), **tables)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
