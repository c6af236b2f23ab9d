"""The attack on sketches whose keys all columns share: it recovers rows there, and nothing where pairs have keys."""

import os

import numpy as np
import pytest

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.mrf.encoders.shared_key import SharedKeyDesign
from vertinumpyro.mrf.encoders.sketch import KEY_BYTES, SketchDesign, sketch_column_pair, sketch_columns

NUM_RECORDS, NUM_COLUMNS, NUM_KEYS = 4000, 16, 1000
# what `VertiMRF(encoder="sketch").plan(..., epsilon=0.8, delta=1/4000)` makes for 8 + 8 binary columns
SOUND = SketchDesign(num_keys=NUM_KEYS, phantoms=2802, lower=13, upper=16)


@pytest.fixture(scope="module")
def table():
    """Rare rows: 4000 people among 65536 possible ones, so a blind guess is right once in 17 times."""
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
        list(table.T),
        [2] * NUM_COLUMNS,
        design.sketch,
        os.urandom(KEY_BYTES),
        list(SystemRandomSource().spawn(NUM_COLUMNS)),
    )
    rows = reconstruct(sketches)
    everything = np.concatenate([rows, reconstruct_at_any_level(sketches)])
    assert share_of_real_rows(everything, table) > 0.15  # 0.06 by chance: what the test below would find
    assert len(rows) >= 40  # measured: 82 to 94, of which 97 to 100 % are real
    assert share_of_real_rows(rows, table) > 0.9


def test_keys_of_a_pair_give_away_no_row(table):
    """The same server, given for every column the sketches that it has under some partner's keys."""
    sources = (SystemRandomSource(), SystemRandomSource())
    sketches = [np.empty(0)] * NUM_COLUMNS
    for own in range(NUM_COLUMNS // 2):
        other = own + NUM_COLUMNS // 2
        pair = (table[:, own], table[:, other])
        sketches[own], sketches[other] = sketch_column_pair(pair, (2, 2), SOUND, os.urandom(KEY_BYTES), sources)
    rows = np.concatenate([reconstruct(sketches), reconstruct_at_any_level(sketches)])
    by_chance = share_of_real_rows(np.random.default_rng(1).integers(2, size=(20_000, NUM_COLUMNS)), table)
    spread = np.sqrt(by_chance * (1 - by_chance) / len(rows))  # five of them: by chance less than once in 10^6 runs
    assert share_of_real_rows(rows, table) < by_chance + 5 * spread < 0.11


def reconstruct_at_any_level(sketches):
    """The guess that is always possible: of each column, under each key, the value with the higher level."""
    levels = np.stack(sketches)
    return (levels[..., 1] > levels[..., 0]).T.astype(int)
