"""Parties that cheat, between real processes: are they refused before anything noisy is opened, and what do they read?

    python benchmarks/cheating.py --quick
    python benchmarks/cheating.py --json results/cheating.json [--only "rows large" "rounds stop commitments" ...]

Two parties or three and CrypTen's dealer release tables, or products of numbers, of a small generated data set, at
epsilon = 1 for everybody.
Party 1 cheats, once in each way (parties 1 and 2 in `colluding ...`, party 0 in `repeated attempt`); the others run the
library as it is.

Keys cheating.<method>.<attack>.{refused, opened, read, spent, why}, an underscore for each space, and
cheating.counts.{ways, refused, at_opening, harmless, read, uncounted} of all ways in which the others verify:

method      vertimrf, whose release is that of `release_marginals` and of all that is fitted to tables; rounds, adaptive
            tables: the messages of a round; triples: the second product, of two columns as one; marginal_inference and
            marginal_glm: the same release, asked for by them;
            functional, second_moments: numbers within public bounds, of a linear regression from noisy products and of
            the moments that its steps begin with;
            semi_honest, semi_honest_functional, semi_honest_second_moments: for comparison, with
            security="semi-honest", where the cheat reads what it made up rows for;
            sums: of three holders of whole records, for a Bayesian linear regression, whose one step is counted when
            all are ready to open it, or a check failed; read are then sums of the others that it saw without noise
refused     whether the run stopped with an error, without a result
opened      whether the cheat saw an honest party's opening of what goes across parties
read        records of others that the result shows whole, far above the noise: what single_records is made to read
spent       the steps that an honest party's ledger counts: all once something across parties may be open, or a check of
            it has failed, 1 before, and 0 before the plan is begun
why         what the honest party said; for what was not refused, why it does no harm

counts      refused: before anything noisy was opened; at_opening: then, which is spent; uncounted: what was opened, and
            is not counted by an honest party's ledger

attack      guessed id: of all ids it knows but one, which it tries; rows ...: columns that it made up, of numbers those
            out of bounds, a half of a digit, a norm or a slack beyond its bound; short, long rows: another length;
            order: its records out of order; noise omitted, absurd; altered ...: a bit of each round's message, of each
            part of the proofs' (a wrong value, a wrong tag, another digest of the rows, another commitment), and of the
            share that is opened; filled ...: with words that are no number; different ...: to one of two others;
            swapped ...: what was for two others; repeated ...: the message before once more; delayed ...; dropped ...:
            it says nothing any more; stop ...: its process ends there; rushing ...: when it has heard the others';
            own pairs: of three, only its own tables get anything of it; colluding large, rows: one of two shows the
            other one other rows than the honest party, which hears that they are the same; colluding shift: both put
            in absurd noise; sums shifted: to its shares in a round it adds numbers;
            second start, start after stop: after rows large, or stop proofs, all start again and are honest;
            repeated attempt: it leaves when all are ready, starts anew with its part of the old attempt's name, agrees
            with one of two and leaves again, so that they are ready with messages of two attempts;
            unverified: its columns are huge in a semi-honest run, which it leaves when all are ready to open; then all
            verify, and --resume

`--quick` keeps every key, for five of the attacks.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from cheating_parts import numbers, sums
from cheating_parts.cheat import (
    INPUTS,
    OF_A_SUM,
    PROOF,
    ROUNDS,
    adaptive,
    cheating,
    fields,
    honest,
    regression,
    triples,
)
from common import environment, finish, parser, with_stored, written
from tqdm.auto import tqdm

from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.session import PartyTask, ProcessSession

NUM_RECORDS, CELLS = 400, 5
_KNOWN = "the result is spoilt, by numbers that it knows"
HARMLESS = {
    "order": "columns of its own choice: what is released of others' records with them has everybody's noise",
    "noise omitted": "it narrows nothing that the cheater learns; others' rows are then those of one more colluder",
    "noise absurd": "it spoils the result, by numbers that it chose before it saw them",
    "altered keys": f"its shares of zero no longer cancel: {_KNOWN}",
    "swapped keys": f"its shares of zero no longer cancel: {_KNOWN}",
    **{f"delayed {name}": "it is waited for" for name in ROUNDS},
    "own pairs": f"it left out its noise and its shares of zero: {_KNOWN}",
    "colluding rows": "the honest party was shown columns that may be; the two spoil the products of both",
    "colluding shift": "it spoils the result, by numbers that they chose before they saw them",
    "sums shifted": "it spoils the result, by numbers that it chose before it saw them",
    "unverified": "what lay ready was not opened: it begins anew, verified",
    "start after stop": "it begins anew, under new keys and masks",
    "repeated attempt": "all have a part in the name, so it is another, and all begin anew",
}
OF_TABLES = [
    "guessed id",
    *(f"rows {kind}" for kind in INPUTS),
    "short rows",
    "order",
    *(f"noise {kind}" for kind in ("omitted", "absurd")),
    *(f"altered {name}" for name in ROUNDS if name != "proofs"),
    *(f"altered {part}" for part in PROOF),
    *(f"different {name}" for name in ("rows", "challenge", "proofs", "agreed", "opening")),
    "swapped proofs",
    *(f"repeated {name}" for name in ROUNDS[1:]),
    *(f"delayed {name}" for name in ("rows",)),
    *(f"stop {name}" for name in ROUNDS),
    "own pairs",
    *(f"colluding {how}" for how in ("large", "rows", "shift")),
    "second start",
    "start after stop",
    "repeated attempt",
    "unverified",
]
OF_ROUNDS = [
    *(f"rows {kind}" for kind in ("large", "single_records")),
    "sums shifted",
    *(f"altered {name}" for name in OF_A_SUM),
    *(f"different {name}" for name in ("commitments", "agreed", "opening")),
    *(f"repeated {name}" for name in OF_A_SUM[1:]),
    *(f"stop {name}" for name in OF_A_SUM),
]
OF_TRIPLES = [
    *(f"rows {kind}" for kind in ("large", "two_hot", "single_records")),
    *(f"altered {name}" for name in (*PROOF, "share")),
    *(f"stop {name}" for name in ROUNDS),
]
_BELIEF = "semi_honest_"
_OPENED = {"sums": 1, "triples": 3}  # steps that a ledger counts once that may be open which is attacked; else 2
_SILENT_S = 10.0  # for which one who says nothing is waited for
ATTACKS = {
    **{attack: ("vertimrf", attack) for attack in OF_TABLES},
    **{f"rounds {attack}": ("rounds", attack) for attack in OF_ROUNDS},
    **{f"triples {attack}": ("triples", attack) for attack in OF_TRIPLES},
    **{f"{name} rows large": (name, "rows large") for name in ("marginal_inference", "marginal_glm")},
    **{f"{name} altered tag": (name, "altered tag") for name in ("marginal_inference", "marginal_glm")},
    "semi_honest rows single_records": ("semi_honest", "rows single_records"),
    "semi_honest_triples rows single_records": ("semi_honest_triples", "rows single_records"),
    **{f"{name} {attack}": (name, attack) for name in numbers.METHODS for attack in numbers.attacks(name)},
    **{f"{_BELIEF}{name} rows single_records": (f"{_BELIEF}{name}", "rows single_records") for name in numbers.METHODS},
    **{f"sums {attack}": ("sums", attack) for attack in sums.ATTACKS},
}
"""(method, attack), by their names on the command line."""
QUICK = ("rows large", "altered tag", "noise omitted", "rounds stop commitments", "functional rows outside")
STARTS = {
    "second start": ("rows large", "follow"),
    "start after stop": ("stop proofs", "follow"),
    "repeated attempt": ("leave ready", "repeat attempt", "follow"),
    "unverified": ("leave unverified", "follow"),
}
"""What the cheat does each time that all start, where it is not once."""
THREE = ("different", "swapped", "own", "colluding")


def dataset(num_parties: int, num_records: int = NUM_RECORDS, cells: int = CELLS) -> VerticalDataset:
    """Two columns at each party."""
    rng, labels = np.random.default_rng(0), [str(cell) for cell in range(cells)]
    schema = Schema(
        {
            f"p{p}": PartySchema({f"c{p}{i}": CategoricalColumn(categories=tuple(labels)) for i in range(2)})
            for p in range(num_parties)
        }
    )
    drawn = {name: rng.choice(labels, num_records) for name in schema.columns}
    return VerticalDataset.from_pooled(schema, pd.DataFrame(drawn))


def _of_triples(num_parties: int) -> VerticalDataset:
    """Records enough that tables of three columns, of few cells, are worth their budget."""
    return dataset(num_parties, 20_000, 2)


def cheats(attack: str) -> tuple[int, ...]:
    """The numbers of those who cheat."""
    return (0,) if attack == "repeated attempt" else (1, 2) if attack.startswith("colluding") else (1,)


def attacked(method: str, attack: str, folder: Path) -> dict[str, Any]:
    """One attack on one plan."""
    if method == "sums":
        return sums.attacked(attack, folder)
    kind = method.removeprefix(_BELIEF)
    of_numbers = kind in numbers.METHODS
    make_data = {**dict.fromkeys(numbers.METHODS, numbers.dataset), "triples": _of_triples}.get(kind, dataset)
    data = make_data(3 if attack.split()[0] in THREE or attack == "repeated attempt" else 2)
    files, seen, names = written(data, folder), folder / "seen", list(data.schema.parties)
    if attack == "guessed id":
        own = files.paths[names[1]]
        own.write_text(own.read_text().replace(f"\n{NUM_RECORDS - 1:06d},", f"\n{NUM_RECORDS:06d},"))
    tables = {"rounds": adaptive, "triples": triples, "marginal_glm": functools.partial(regression, data.schema)}
    make = {**tables, **numbers.METHODS}.get(kind, fields)
    made = honest(make)
    plan = numbers.plan_of(kind, made, data) if of_numbers else made.plan(data, epsilon=1.0, delta=1e-5)
    timeout_s = _SILENT_S if attack.startswith("dropped") else 30.0
    released, why = None, ""
    for start in STARTS.get(attack, (attack,)):
        assert released is None
        verifies = "semi_honest" not in method and start != "leave unverified"
        tasks = [
            PartyTask(
                party=name, schema=data.schema.to_dict(), table=files.paths[name],
                build=_build(make, start, str(seen), cheats=rank in cheats(attack), verifies=verifies),
            )
            for rank, name in enumerate(names)
        ]  # fmt: skip
        released, why = run(kind, made, tasks, plan, folder / "run", timeout_s)
    read = 0
    if released is not None:
        read = numbers.records_read(released, made, plan, data) if of_numbers else records_read(released, data)
    first = next(name for rank, name in enumerate(names) if rank not in cheats(attack))
    ledgers = [json.loads(path.read_text()) for path in folder.glob(f"{first}*/*/privacy.json")]
    return {
        "refused": released is None,
        "opened": seen.exists() or released is not None,
        "read": read,
        "spent": min((ledger["steps_spent"] for ledger in ledgers), default=0),
        "why": why if released is None else HARMLESS[attack] if verifies else "everybody believes the cheat",
    }


def _build(make: Callable[..., Any], start: str, seen: str, *, cheats: bool, verifies: bool) -> Callable[[], Any]:
    """What a party runs."""
    if cheats:
        return functools.partial(cheating, make, start, seen, verifies=verifies)
    return functools.partial(honest, make, verifies=verifies)


def run(method: str, made: Any, tasks: list[PartyTask], plan: Any, folder: Path, timeout_s: float) -> tuple[Any, str]:
    """What was released, or None and what was said."""
    try:
        with ProcessSession(tasks, timeout_s=timeout_s) as session:
            if method in numbers.METHODS:
                return numbers.released(method, session, plan, folder), ""
            if method == "marginal_glm":
                return made.release(session, plan, run_dir=folder, resume=folder.exists()), ""
            found = release_marginals(session, plan, made, run_dir=folder, resume=folder.exists())
            if method == "marginal_inference":
                MarginalInference(settings=made).fit(found, jax.random.key(0))
            return found, ""
    except VertinumpyroError as error:
        return None, str(error)


def records_read(released: Any, data: VerticalDataset) -> int:
    """Of the first records, those whose cells of a column of party 0 stand out in the tables with the cheat's."""
    codes, found = data.arrays("p0")["c00"], []
    for one in released.measurements:
        if one.columns in (("c00", "c10"), ("c00", "c10", "c11")):
            # a column for each of the cheat's cells, which are a record each in its attack: those of c10 come first
            table = one.values.reshape(len(one.values), -1)
            victims = codes[one.values.shape[1] :] if one.values.ndim == 3 else codes
            high = table > 2**19
            alone = (high.sum(axis=0) == 1) & (np.where(high, 0, np.abs(table)).max(axis=0) < 2**10)
            found += [bool(alone[k]) and int(table[:, k].argmax()) == int(victims[k]) for k in range(table.shape[1])]
    return sum(found)


def main(args: argparse.Namespace) -> None:
    """All attacks, one after the other."""
    found: dict[str, dict[str, Any]] = {}
    for name in tqdm(args.only or (QUICK if args.quick else ATTACKS), disable=None):
        method, attack = ATTACKS[name]
        with tempfile.TemporaryDirectory(prefix="cheating-") as folder:
            found.setdefault(method, {})[attack.replace(" ", "_")] = attacked(method, attack, Path(folder))
    everything = with_stored({"cheating": found}, args)["cheating"]
    finish({"cheating": {**found, "counts": counts(everything)}, "environment": environment()}, args, {})


def counts(found: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Of all ways in which the others verify."""
    methods = [name for name in found if name != "counts" and "semi_honest" not in name]
    ways = [way for name in methods for way in found[name].values()]
    least = [(way, _OPENED.get(name, 2)) for name in methods for way in found[name].values()]
    return {
        "ways": len(ways),
        "refused": sum(way["refused"] and not way["opened"] for way in ways),
        "at_opening": sum(way["refused"] and way["opened"] for way in ways),
        "harmless": sum(not way["refused"] for way in ways),
        "read": sum(way["read"] for way in ways),
        "uncounted": sum(way["opened"] and way["spent"] < steps for way, steps in least),
    }


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=ATTACKS, metavar="ATTACK", help="these alone")
    main(made.parse_args())
