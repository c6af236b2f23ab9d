"""A party that cheats, between real processes: is it refused before anything noisy is opened, and what does it read?

    python benchmarks/cheating.py --quick
    python benchmarks/cheating.py --json results/cheating.json [--only "rows large" "stop proofs" ...]

Two parties or three and CrypTen's dealer release tables of a small generated data set, at epsilon = 1 for everybody.
Party 1 cheats, once in each way; the others run the library as it is.

Keys cheating.<method>.<attack>.{refused, opened, read, spent}, an underscore for each space:

method      vertimrf, whose release is that of `release_marginals` and of all that is fitted to tables
refused     whether the run stopped with an error, without tables
opened      whether the cheat saw an honest party's opening of tables across parties
read        records of others that the tables show whole, far above the noise: what single_records is made to read
spent       the steps that party 0's ledger counts: 2 once tables across parties may be open, 1 before
why         what the honest party said; for what was not refused, why it does no harm

attack      rows ...: columns that it made up; short rows: another length; order: its records out of order;
            noise omitted, absurd; altered ...: a bit of each round's message, and of each part of the proofs' (a wrong
            value, a wrong tag, another digest of the rows, another commitment); different ...: to one of two others;
            swapped proofs; repeated ...: the message before once more; delayed ...; stop ...: its process ends there;
            second start: after rows large, everybody starts again and is honest

`--quick` keeps every key, for three of the attacks.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cheating_parts.cheat import CHEAT, INPUTS, PROOF, ROUNDS, cheating, honest
from common import environment, finish, parser, written
from tqdm.auto import tqdm

from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.marginals import release_marginals
from vertinumpyro.session import PartyTask, ProcessSession

NUM_RECORDS, CELLS = 400, 5
HARMLESS = {
    "order": "columns of its own choice: tables of others' records with them have everybody's noise",
    "noise omitted": "it narrows nothing that the cheater learns; others' rows are then those of one more colluder",
    "noise absurd": "it spoils the tables, by numbers that it chose before it saw them",
    "altered keys": "its shares of zero no longer cancel: the tables are spoilt, by numbers that it knows",
    "delayed rows": "it is waited for",
}
ATTACKS = [
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
    "second start",
]
QUICK = ("rows large", "altered tag", "noise omitted")
THREE = ("different", "swapped")


def dataset(num_parties: int) -> VerticalDataset:
    """Two columns at each party."""
    rng, labels = np.random.default_rng(0), [str(cell) for cell in range(CELLS)]
    schema = Schema(
        {
            f"p{p}": PartySchema({f"c{p}{i}": CategoricalColumn(categories=tuple(labels)) for i in range(2)})
            for p in range(num_parties)
        }
    )
    drawn = {name: rng.choice(labels, NUM_RECORDS) for name in schema.columns}
    return VerticalDataset.from_pooled(schema, pd.DataFrame(drawn))


def attacked(attack: str, folder: Path) -> dict[str, Any]:
    """One attack on one plan."""
    data = dataset(3 if attack.split()[0] in THREE else 2)
    files = written(data, folder)
    plan = honest().plan(data, epsilon=1.0, delta=1e-5)
    seen = folder / "seen"
    names = list(data.schema.parties)
    done = attack if attack != "second start" else "rows large"

    def tasks(done: str | None) -> list[PartyTask]:
        builds = [honest if rank != CHEAT or done is None else functools.partial(cheating, done, str(seen))
                  for rank in range(len(names))]  # fmt: skip
        made = zip(names, builds, strict=True)
        return [PartyTask(party=p, schema=data.schema.to_dict(), table=files.paths[p], build=b) for p, b in made]

    released, why = run(tasks(done), plan, folder / "run")
    if attack == "second start":
        assert released is None
        released, why = run(tasks(None), plan, folder / "run")
    ledgers = [json.loads(path.read_text()) for path in folder.glob(f"{names[0]}*/*/privacy.json")]
    return {
        "refused": released is None,
        "opened": seen.exists(),
        "read": 0 if released is None else records_read(released, data),
        "spent": min(ledger["steps_spent"] for ledger in ledgers),
        "why": HARMLESS.get(attack, "it begins anew, under new keys and masks") if released is not None else why,
    }


def run(tasks: list[PartyTask], plan: Any, folder: Path) -> tuple[Any, str]:
    """The released tables, or None and what was said."""
    try:
        with ProcessSession(tasks, timeout_s=30.0) as session:
            return release_marginals(session, plan, honest(), run_dir=folder, resume=folder.exists()), ""
    except VertinumpyroError as error:
        return None, str(error)


def records_read(released: Any, data: VerticalDataset) -> int:
    """Of the first records, those whose cells of a column of party 0 stand out in the tables with the cheat's."""
    codes, found = data.arrays("p0")["c00"], []
    for one in released.measurements:
        if one.columns == ("c00", "c10"):
            table = one.values  # a column for each of the cheat's cells, which are a record each in its attack
            high = table > 2**19
            alone = (high.sum(axis=0) == 1) & (np.where(high, 0, np.abs(table)).max(axis=0) < 2**10)
            found = [bool(alone[k]) and int(table[:, k].argmax()) == int(codes[k]) for k in range(table.shape[1])]
    return sum(found)


def main(args: argparse.Namespace) -> None:
    """All attacks, one after the other."""
    chosen = args.only or (QUICK if args.quick else ATTACKS)
    found = {}
    for attack in tqdm(chosen, disable=None):
        with tempfile.TemporaryDirectory(prefix="cheating-") as folder:
            found[attack.replace(" ", "_")] = attacked(attack, Path(folder))
    finish({"cheating": {"vertimrf": found}, "environment": environment()}, args, {})


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=ATTACKS, metavar="ATTACK", help="these alone")
    main(made.parse_args())
