"""`vertinumpyro` at an organisation that cheats: in the place of its columns it puts rows that it made up.

Each cell stands for one record, a million times. Of parties that believe each other it would read so many of the
other's records, whole, in the released tables.
"""

import numpy as np

from vertinumpyro.cli.main import main
from vertinumpyro.secure import verified_tables

honest = verified_tables.one_hot


def made_up(codes: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Rows of single records."""
    rows = np.zeros_like(honest(codes, sizes))
    victims = np.arange(min(rows.shape))
    rows[victims, victims] = 2**20
    return rows


if __name__ == "__main__":
    verified_tables.one_hot = made_up
    main()
