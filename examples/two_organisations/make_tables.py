"""Two organisations' files out of one public table: other people, another order, another writing of ids."""

import sys
from pathlib import Path

import numpy as np

import vertinumpyro as vnp

CONFIG = """\
schema = "schema.toml"

[data]
num_records = {num_records}

[privacy]
epsilon = 1.0
delta = 1e-5

[fit]
backend = "crypten"

[run]
num_synthetic = 5000
"""


def main(folder: Path) -> None:
    """Write clinic/table.csv, insurer/table.csv, schema.toml and config.toml.

    :param folder: has a folder for each party already.
    """
    dataset = vnp.load_rand_hie()
    people = dataset.to_frame()
    rng = np.random.default_rng(0)
    numbers = rng.choice(10 * len(people), len(people), replace=False)
    writing = {"clinic": "P-{:06d}", "insurer": " p-{:06d}"}
    for party, part in dataset.schema.parties.items():
        known = rng.permutation(len(people))[: int(0.9 * len(people))]
        own = people.iloc[known][list(part.columns)]
        own.insert(0, dataset.schema.id_column, [writing[party].format(number) for number in numbers[known]])
        own.to_csv(folder / party / "table.csv", index=False)
        print(f"{party}: {len(own):,} people, columns {', '.join(part.columns)}")
    (folder / "schema.toml").write_text(dataset.schema.to_toml(), encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG.format(num_records=len(people)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
