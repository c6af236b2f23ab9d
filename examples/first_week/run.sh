#!/usr/bin/env bash
# Runs every command of the page beside it, README.md, in a new folder: run.sh FOLDER. `vertinumpyro` and its `python` must be
# on the PATH; the page's `pip install` is the one command that is left out.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${1:?give a new folder}"
mkdir "$folder"
cd "$folder"
cp "$here/make_files.py" .

awk '/^```bash$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$here/README.md" | grep -v '^pip install' >commands.sh
bash -euxo pipefail commands.sh

# What a reader was promised.
[[ -s run/report.html && -s run/synthetic.parquet && -s more.parquet ]]
grep -q '"status": "finished"' run/privacy.json
python - <<'END'
import pandas as pd

files = [pd.read_csv(f"{name}.csv", sep=";", decimal=",", encoding="cp1252", dtype={"Patient": str}) for name in ("clinic", "insurer")]
common = files[0].merge(files[1], on="Patient")
# Without threads: one of pyarrow's that is left may abort a short script at its exit (apache/arrow 34314).
twin, more = pd.read_csv("run/synthetic.csv"), pd.read_parquet("more.parquet", use_threads=False, pre_buffer=False)
assert len(twin) == len(common) and len(more) == 10_000, (len(twin), len(common), len(more))
assert set(twin) == set(common) - {"Patient"}, list(twin)


def link(table):
    """How much more often a smoker has bronchitis, and how many visits more someone with bronchitis pays."""
    ill = table["Diagnose"] == "Bronchitis"
    smokers, visits = table["Raucher"] == "ja", table["Besuche"]
    return ill[smokers].mean() - ill[~smokers].mean(), visits[ill].mean() - visits[~ill].mean()


for what, real, found in zip(("smokers and bronchitis", "bronchitis and visits"), link(common), link(twin)):
    print(f"{what}: {real:.2f} in the files, {found:.2f} in the twin")
    assert 0.4 * real < found < 1.6 * real  # noise differs from run to run
END
echo "From two files to a twin: done."
