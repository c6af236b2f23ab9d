"""Wrote the files beside it, at commit 326fdbb: `python tests/golden/make.py FOLDER` from the root of that checkout.

Not run again: the files stand for what earlier versions stored, and tests/test_stored_formats.py loads them.
"""

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from vertinumpyro.data.linkage import Linkage

from vertinumpyro.cli.main import app
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy.account import Account
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression
from vertinumpyro.study import Agreement, Approval, Member
from vertinumpyro.transport import Address, make_identity

SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "age": RealColumn(bounds=(0.0, 100.0))}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)
CONFIG = """schema = "schema.toml"
[data.files]
clinic = "clinic.csv"
insurer = "insurer.csv"
[privacy]
epsilon = 1.0
delta = 1e-5
[mrf]
max_cells = 4
iterations = 20
clique_limit = 1000
encoder = "randomized_response"
"""
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
    write_holders(folder)
    write_regression(folder / "glm")
    Linkage.made("a topic", [f"person {number}" for number in range(6)], np.array([0, 2, 5])).save(
        folder / "linkage.npz"
    )
    write_command_line(folder)


def write_holders(folder: Path) -> None:
    """What holders of whole records released."""
    rng = np.random.default_rng(0)
    clients = HorizontalDataset.from_clients([VerticalDataset.example(SCHEMA, 60, rng) for _ in range(3)])
    model = HorizontalDPVI(dpvi=DPVI(num_components=2, warm_start=False))
    plan = model.plan(clients, noise_multiplier=8.0, num_steps=2, batch_size=20)
    target, key = folder / "horizontal", jax.random.PRNGKey(0)
    model.fit(clients, plan, key, progress_bar=False, run_dir=target).save(target / "posterior.npz")
    X, y = rng.uniform(-1, 1, (200, 2)), rng.uniform(-1, 1, 200)
    linear = BayesianLinearRegression(epsilon=1.0, bounds=1.0, target_bound=1.0)
    linear.fit(X, y, run_dir=folder / "bayesian_linear")


def write_regression(folder: Path) -> None:
    """A regression by steps."""
    data = VerticalDataset.example(SCHEMA, 100, np.random.default_rng(0))
    model = VerticalGLM(label="ill", epsilon=1.0, delta=1e-5)
    model.fit(data, run_dir=folder)


def write_command_line(folder: Path) -> None:
    """The folder of a `vertinumpyro fit`, by an encoder that is no table."""
    rng = np.random.default_rng(0)
    frames = {
        "clinic": pd.DataFrame({"id": range(100), "ill": rng.integers(0, 2, 100), "age": rng.uniform(0, 100, 100)}),
        "insurer": pd.DataFrame({"id": range(100), "plan": rng.choice(list("abc"), 100)}),
    }
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "schema.toml").write_text(SCHEMA.to_toml())
        (here / "config.toml").write_text(CONFIG)
        for party, frame in frames.items():
            frame.to_csv(here / f"{party}.csv", index=False)
        app(
            ["fit", str(here / "config.toml"), "--method", "vertimrf", "--out", str(here / "run")],
            standalone_mode=False,
        )
        kept = [path for path in sorted((here / "run").iterdir()) if path.suffix in (".json", ".npz", ".toml")]
        (folder / "command_line").mkdir()
        for path in kept:
            shutil.copy(path, folder / "command_line")


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
