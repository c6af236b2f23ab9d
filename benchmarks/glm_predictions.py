"""Predictions between parties: what a score, a class or a band of new records costs, and whether it is the same.

    VERTINUMPYRO_DATA=... python benchmarks/glm_predictions.py --json results/glm_predictions.json
    python benchmarks/glm_predictions.py --quick

`VerticalGLM` of Adult's income is fitted at epsilon = 1; then each party has a process of its own with its own columns
of the test records, and the label's party is told of each what is asked for. Extra `crypten`.

Keys `<parties>.<what>.{seconds,rounds,bytes_per_record,dealer_bytes_per_record,differ}`:

score, class, bands     what the label's party is told; bands are cut at probabilities of 0.1, 0.25 and 0.5
seconds, rounds         of one prediction of all test records, the records matched already
bytes_per_record        sent by a party that is told nothing
dealer_bytes_per_record from the dealer to that party
differ                  records of which it is told something else than one process computes from all columns
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import DELTA, environment, finish, parser, regrouped

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.datasets import load_adult
from vertinumpyro.glm import VerticalGLM, VerticalPredictor
from vertinumpyro.session import PartyTask, ProcessSession

LABEL = "income"
WHAT: dict[str, str | tuple[float, ...]] = {"score": "score", "class": "class", "bands": (0.1, 0.25, 0.5)}


def divided(dataset: VerticalDataset, num_parties: int) -> VerticalDataset:
    """The features dealt out in turn, the label at the last party: the first one is told nothing."""
    names = [name for name in dataset.schema.columns if name != LABEL]
    parties = {f"party_{i}": names[i::num_parties] for i in range(num_parties)}
    parties[f"party_{num_parties - 1}"].append(LABEL)
    return regrouped(dataset, parties)


def measured(predictor: VerticalPredictor, test: VerticalDataset, folder: Path) -> dict[str, float]:
    """One prediction, after another one, in the same processes."""
    frame, schema = test.to_frame(), predictor.schema
    frame.insert(0, schema.id_column, [f"{i:06d}" for i in range(len(frame))])
    tasks = []
    for party in schema.parties:
        table = folder / f"{party}.csv"
        frame[[schema.id_column, *schema.column_names(party)]].to_csv(table, index=False)
        told = folder / f"{party}.told.csv"
        tasks.append(PartyTask(party=party, schema=schema.to_dict(), table=table, build=predictor.build, told=told))
    with ProcessSession(tasks) as session:
        predictor.predict(session)
        before, dealt, started = session.traffic, session.dealer_traffic, time.perf_counter()
        predictor.predict(session)
        seconds = time.perf_counter() - started
        traffic, dealer = session.traffic.since(before), session.dealer_traffic.since(dealt)
    told = pd.read_csv(folder / f"{predictor.receiver}.told.csv").drop(columns=schema.id_column)
    here: Any = predictor.predict(test)
    same = [
        np.isclose(told[name], here[name])
        if told[name].dtype.kind == "f"
        else told[name].astype(str) == here[name].astype(str)
        for name in here
    ]
    return {
        "seconds": seconds,
        "rounds": traffic.rounds,
        "bytes_per_record": traffic.bytes_sent / test.num_records,
        "dealer_bytes_per_record": dealer.bytes_received / test.num_records,
        "differ": int(np.sum(~np.all(same, axis=0))),
    }


def main(args: argparse.Namespace) -> None:
    parts = [load_adult(layout="with_income", split=split) for split in ("train", "test")]
    most = 2000 if args.quick else None
    train, test = (part.take(np.arange(part.num_records)[:most]) for part in parts)
    found: dict[str, Any] = {}
    for num_parties in (2, 3):
        table = divided(train, num_parties)
        model = VerticalGLM(label=LABEL, delta=DELTA, plan_settings={"num_steps": 20} if args.quick else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(table, plan=model.plan(table, epsilon=1.0))
        for what, reveal in WHAT.items():
            with tempfile.TemporaryDirectory() as folder:
                predictor = model.predictor(reveal, allow_not_dp=True)
                cost = measured(predictor, divided(test, num_parties), Path(folder))
            found.setdefault(str(num_parties), {})[what] = cost
            print(f"{num_parties} parties, {what}: {cost}", flush=True)
    finish({**found, "num_records": test.num_records, "environment": environment()}, args, {})


if __name__ == "__main__":
    main(parser(__doc__).parse_args())
