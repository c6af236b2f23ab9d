"""Two files as a hospital and an insurer would have them, of invented people: semicolons, cp1252, commas, dates.

Each holds 6,120 of 7,200 people, so that some 72% of all are in both.
"""

from pathlib import Path

import numpy as np
import pandas as pd

PEOPLE, EACH = 7200, 6120

rng = np.random.default_rng(7)
smoker = rng.random(PEOPLE) < 0.27
weight = np.clip(rng.normal(76 + 5 * smoker, 13), 42, 139).round(1)
admitted = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 4 * 365, PEOPLE), "D")
others = rng.choice(["Knöchelbruch", "Grippe"], PEOPLE)
diagnosis = np.where(rng.random(PEOPLE) < 0.2 + 0.4 * smoker, "Bronchitis", others)
visits = rng.poisson(1 + 2.5 * (diagnosis == "Bronchitis"))
costs = (80 + 130 * visits + rng.gamma(2, 60, PEOPLE)).round(2)
tariff = rng.choice(["Basis", "Komfort", "Premium"], PEOPLE, p=[0.6, 0.3, 0.1])
ids = [f"P{number:05d}" for number in rng.permutation(90_000)[:PEOPLE]]

clinic = pd.DataFrame(
    {
        "Patient": ids,
        "Aufnahme": admitted.strftime("%d.%m.%Y"),
        "Gewicht": weight,
        "Raucher": np.where(smoker, "ja", "nein"),
        "Diagnose": diagnosis,
    }
)
insurer = pd.DataFrame({"Patient": ids, "Tarif": tariff, "Besuche": visits, "Kosten": costs})
insurer.loc[rng.random(PEOPLE) < 0.03, "Kosten"] = np.nan

for name, table in (("clinic", clinic), ("insurer", insurer)):
    part = table.sample(EACH, random_state=len(name))
    part.to_csv(Path(f"{name}.csv"), index=False, sep=";", decimal=",", encoding="cp1252")
