"""The attack on sketches whose keys all columns share: it recovers rows there, and nothing where pairs have keys."""

import os

import numpy as np
import pytest

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.mrf.shared_key import SharedKeyDesign
from vertinumpyro.mrf.sketch import KEY_BYTES, SketchDesign, sketch_column_pair, sketch_columns

NUM_RECORDS, NUM_COLUMNS, NUM_KEYS = 4000, 12, 1000
# what `VertiMRF(encoder="sketch").plan(..., epsilon=0.8, delta=1/4000)` makes for 6 + 6 binary columns
SOUND = SketchDesign(num_keys=NUM_KEYS, phantoms=2085, lower=12, upper=15)


@pytest.fixture(scope="module")
def table():
    """Rare rows: of 4096 possible ones most people have their own."""
    return np.random.default_rng(0).integers(2, size=(NUM_RECORDS, NUM_COLUMNS))


def reconstruct(sketches):
    """Rows that the server guesses, from levels `[columns, keys, 2]`: it holds no key and no record.

    Under each key it looks for the highest level, three above the cut or more, that exactly one value of every column
    shows. A single record with that hash in common is then by far the likeliest reason.
    """
    rows = []
    for levels in np.stack(sketches).transpose(1, 0, 2):
        for level in range(levels.max(), levels.min() + 2, -1):
            shown = levels == level
            if (shown.sum(axis=1) == 1).all():
                rows.append(shown[:, 1].astype(int))
                break
    return np.array(rows).reshape(-1, NUM_COLUMNS)


def share_of_real_rows(rows, table):
    real = {tuple(row) for row in table}
    return np.mean([tuple(row) in real for row in rows])


def test_the_papers_encoder_gives_away_exact_rows(table):
    design = SharedKeyDesign(num_keys=NUM_KEYS, claimed_epsilon=0.8, delta=1 / NUM_RECORDS, num_columns=NUM_COLUMNS)
    sketches = sketch_columns(
        list(table.T), [2] * NUM_COLUMNS, design.sketch, os.urandom(KEY_BYTES), list(SystemRandomSource().spawn(12))
    )
    rows = reconstruct(sketches)
    assert len(rows) >= 50  # measured: 123 to 137, of which 98 to 100 % are real
    assert share_of_real_rows(rows, table) > 0.9


def test_keys_of_a_pair_give_away_no_row(table):
    """The same server, given for every column the sketches that it has under some partner's keys."""
    sources = (SystemRandomSource(), SystemRandomSource())
    sketches = [np.empty(0)] * NUM_COLUMNS
    for own in range(NUM_COLUMNS // 2):
        other = own + NUM_COLUMNS // 2
        pair = (table[:, own], table[:, other])
        sketches[own], sketches[other] = sketch_column_pair(pair, (2, 2), SOUND, os.urandom(KEY_BYTES), sources)
    rows = reconstruct(sketches)
    rows = rows if len(rows) else reconstruct_at_any_level(sketches)
    by_chance = share_of_real_rows(np.random.default_rng(1).integers(2, size=(20_000, NUM_COLUMNS)), table)
    spread = np.sqrt(by_chance * (1 - by_chance) / len(rows))
    assert share_of_real_rows(rows, table) < by_chance + 5 * spread < 0.9


def reconstruct_at_any_level(sketches):
    """The guess that is always possible: of each column, under each key, the value with the higher level."""
    levels = np.stack(sketches)
    return (levels[..., 1] > levels[..., 0]).T.astype(int)
