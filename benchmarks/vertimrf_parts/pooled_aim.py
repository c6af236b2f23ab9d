"""AIM of the library `dpmm` on pooled codes, run by an interpreter that has it (numpy below 2).

    PYTHON pooled_aim.py INPUT.npz OUTPUT.npz EPSILON DELTA

`dpmm` accounts for adding or removing a record, in zero-concentrated DP. Replacing one moves a table by √2 instead of
1, so ρ of a Gaussian doubles, and the exponential mechanism's scores by twice as much, so its ρ is four times as
large. AIM spends nine tenths on tables: ρ is divided by 2.2 to hold for replace.
"""

import sys

import numpy as np
import pandas as pd

REPLACE_COST = 0.9 * 2 + 0.1 * 4


def main() -> None:
    """Read codes `[N, d]` and cells `[d]`, write synthetic codes `[N, d]`."""
    from dpmm.models.aim import AIMGM  # pyright: ignore[reportMissingImports]
    from dpmm.models.base.mechanisms import cdp_rho  # pyright: ignore[reportMissingImports]

    source, target, epsilon, delta = sys.argv[1:]
    stored = np.load(source)
    codes, cells = stored["codes"], stored["cells"]
    names = [f"c{i}" for i in range(codes.shape[1])]
    frame = pd.DataFrame(codes, columns=names)
    domain = dict(zip(names, cells.tolist(), strict=True))
    made = AIMGM(epsilon=float(epsilon), delta=float(delta), domain=domain, n_jobs=1, compress=False)
    made.generator.rho = cdp_rho(float(epsilon), float(delta)) / REPLACE_COST
    made.fit(frame)
    np.savez(target, codes=made.generate(len(frame))[names].to_numpy().astype(np.int64))


if __name__ == "__main__":
    main()
