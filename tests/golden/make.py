"""Wrote the files beside it, at commit 326fdbb: `python tests/golden/make.py FOLDER` from the root of that checkout.

Not run again: the files stand for what earlier versions stored, and tests/test_stored_formats.py loads them.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np

from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy.account import Account
from vertinumpyro.regression import VerticalLinearRegression
from vertinumpyro.study import Agreement, Approval, Member
from vertinumpyro.transport import Address, make_identity

SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "age": RealColumn(bounds=(0.0, 100.0))}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)
FIELD = VertiMRF(max_cells=4, iterations=20, clique_limit=1_000)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    for name in ("field", "marginals", "study"):
        (folder / name).mkdir(parents=True)
    data = VerticalDataset.example(SCHEMA, 100, np.random.default_rng(0))
    key = jax.random.PRNGKey(0)
    dpvi = DPVI(num_components=2, warm_start=False)
    plan = dpvi.plan(data, noise_multiplier=8.0, num_steps=2, batch_size=20)
    dpvi.fit(data, plan, key, progress_bar=False, run_dir=folder / "dpvi").save(folder / "dpvi" / "posterior.npz")
    plan = FIELD.plan(data, epsilon=1.0, delta=1e-5)
    twin = FIELD.fit(data, plan, run_dir=folder / "field_run")
    twin.save(folder / "field")
    release = release_marginals(data, FIELD.plan(data, epsilon=2.0, delta=1e-5))
    release.save(folder / "marginals")
    model = MarginalInference(num_components=1, num_steps=100, num_starts=1, law="tables")
    model.fit(release, key).save(folder / "marginals" / "posterior.npz")
    linear = VerticalLinearRegression(label="age")
    plan = linear.plan(SCHEMA, "age", num_records=100, epsilon=1.0, delta=1e-5)
    linear.fit(data, plan=plan, run_dir=folder / "linear")
    account = Account(folder / "account.sqlite", "clinic", "visits")
    account.begin(plan, secure_noise=True)
    account.note(plan, 1, finished=True, secure_noise=True)
    write_study(folder / "study")


def write_study(folder: Path) -> None:
    """An agreement and the clinic's approval; the keys are thrown away."""
    with tempfile.TemporaryDirectory() as keys:
        identities = {name: make_identity(Path(keys) / name, name) for name in ("clinic", "insurer", "dealer")}
        places = {"clinic": Address("127.0.0.1", 9001), "insurer": Address("127.0.0.1", 9002), "dealer": None}
        members = {n: Member(certificate=identities[n].certificate, address=a) for n, a in places.items()}
        helper = {"dealer": members.pop("dealer")}
        plan = FIELD.plan(VerticalDataset.example(SCHEMA, 100, np.random.default_rng(0)), epsilon=1.0, delta=1e-5)
        study = Agreement(
            name="a study",
            schema=SCHEMA,
            members=members,
            helpers=helper,
            method="vertimrf",
            settings={"mrf": {"max_cells": 4}, "fit": {"backend": "crypten"}},
            plan=plan,
        )
        study.save(folder / "study.toml")
        Approval.sign(study, "clinic", identities["clinic"]).save(folder / "clinic.approval")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
