from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, bernoulli_successes
from vertinumpyro.privacy.sampling import Batches, DisjointBatches, PoissonSampling

FALSE_FAILURE = 1e-6


class Bytes(RandomSource):
    secure = False

    def __init__(self, *pieces):
        self.pieces = list(pieces)

    def random_bytes(self, num_bytes):
        piece = self.pieces.pop(0) if self.pieces else b""
        assert len(piece) == num_bytes
        return piece

    def uint64(self, size):
        raise NotImplementedError

    def spawn(self, num_sources):
        raise NotImplementedError


def test_bernoulli_compares_digits_and_reads_on_only_for_ties():
    # 0x0102 / 2^16: first byte below 1 succeeds, above fails, equal reads the second, and so on to the end.
    prob = Fraction(0x0102, 2**16)
    rest = [bytes([0])] * 5
    source = Bytes(bytes([0, 1, 1, 1, 2]), bytes([1, 3, 2]), *rest, bytes([0]))
    assert bernoulli_successes(prob, 5, source).tolist() == [0, 1]  # the full tie is not below
    assert source.pieces == []


@pytest.mark.parametrize("prob", [0.003, 0.25, 1 / 3, 0.9999], ids=str)
def test_bernoulli_frequency(prob, seeded):
    count = 300_000
    successes = bernoulli_successes(Fraction(prob), count, seeded(1)).size
    assert stats.binomtest(successes, count, prob).pvalue > FALSE_FAILURE
    assert stats.binomtest(successes, count, prob * 0.95).pvalue < FALSE_FAILURE or prob < 0.01


def test_bernoulli_extremes(seeded):
    assert bernoulli_successes(Fraction(0), 100, seeded(1)).size == 0
    assert bernoulli_successes(Fraction(1), 100, Bytes()).tolist() == list(range(100))
    with pytest.raises(ArgumentError, match="prob"):
        bernoulli_successes(Fraction(3, 2), 1, seeded(1))


def check_shape(batches, num_steps, size, num_records):
    assert batches.indices.shape == batches.mask.shape == (num_steps, size)
    assert batches.indices.dtype == np.int32
    assert batches.mask.dtype == bool
    assert np.all(batches.indices[~batches.mask] == 0)
    for indices, mask in zip(batches.indices, batches.mask, strict=True):
        valid = indices[mask]
        assert np.all(np.diff(valid) > 0)
        assert np.all((valid >= 0) & (valid < num_records))
        assert not np.any(np.diff(mask.astype(int)) > 0)  # padding is last


def test_poisson_batches(seeded):
    sampling = PoissonSampling(sampling_prob=0.05, num_steps=2000, max_batch_size=64)
    batches = sampling.draw(400, 0, 2000, seeded(2))
    check_shape(batches, 2000, 64, 400)
    per_record = np.bincount(batches.indices[batches.mask], minlength=400)
    statistic = ((per_record - 100) ** 2 / (100 * 0.95)).sum()
    assert stats.chi2.sf(statistic, 400) > FALSE_FAILURE
    sizes = batches.mask.sum(1)
    assert abs(sizes.var() / 19 - 1) < 5 * np.sqrt(2 / 2000)  # 6e-7: sizes vary as Bin(400, 0.05)


def test_truncation_keeps_a_uniform_subset(seeded):
    sampling = PoissonSampling(sampling_prob=0.5, num_steps=3000, max_batch_size=4)
    batches = sampling.draw(20, 0, 3000, seeded(3))
    check_shape(batches, 3000, 4, 20)
    per_record = np.bincount(batches.indices[batches.mask], minlength=20)
    assert stats.chisquare(per_record).pvalue > FALSE_FAILURE


def test_full_batch_takes_every_record(seeded):
    sampling = PoissonSampling.for_batch_size(10, 10, 3)
    assert sampling.max_batch_size == 10
    assert sampling.truncation_delta(10) == 0
    batches = sampling.draw(10, 1, 2, Bytes())
    assert batches.mask.all()
    assert batches.indices.tolist() == [list(range(10))] * 2
    with pytest.raises(ArgumentError, match="max_batch_size"):
        sampling.start(11, seeded(0))


@pytest.mark.parametrize("tail", [1e-4, 1e-10, 1e-14])
def test_for_batch_size_is_the_smallest_multiple_of_eight(tail):
    sampling = PoissonSampling.for_batch_size(100, 30162, 20000, tail=tail)
    size = sampling.max_batch_size
    assert size % 8 == 0
    exact = 20000 * np.exp(stats.binom.logsf(size, 30162, 100 / 30162))
    assert sampling.truncation_delta(30162) == pytest.approx(exact, rel=1e-5)
    assert sampling.truncation_delta(30162) <= tail
    assert 20000 * stats.binom.sf(size - 8, 30162, 100 / 30162) > tail
    assert sampling.expected_batch_size(30162) == pytest.approx(100)
    assert PoissonSampling.for_batch_size(9, 10, 5).max_batch_size == 10


def test_streams_count_steps(seeded):
    sampling = PoissonSampling(sampling_prob=0.1, num_steps=5, max_batch_size=8)
    stream = sampling.start(20, seeded(1), first_step=2)
    stream.next(2)
    assert stream.step == 4
    with pytest.raises(PlanSpentError, match="1 steps left"):
        stream.next(2)
    stream.next(1)
    with pytest.raises(PlanSpentError):
        stream.next(1)
    with pytest.raises(ArgumentError, match="first_step"):
        sampling.start(20, seeded(1), first_step=6)


@pytest.mark.parametrize("num_records", [12, 13, 17])
def test_disjoint_batches_partition_every_epoch(num_records, seeded):
    sampling = DisjointBatches(batch_size=4, num_epochs=6)
    length = -(-num_records // 4)
    total = sampling.total_steps(num_records)
    assert total == 6 * length
    stream, pieces = sampling.start(num_records, seeded(4)), []
    while stream.step < total:
        pieces.append(stream.next(min(5, total - stream.step)))  # chunks that straddle epochs
    batches = Batches(np.concatenate([p.indices for p in pieces]), np.concatenate([p.mask for p in pieces]))
    check_shape(batches, total, 4, num_records)
    for epoch in range(6):
        rows = slice(epoch * length, (epoch + 1) * length)
        records = batches.indices[rows][batches.mask[rows]]
        assert sorted(records.tolist()) == list(range(num_records))
    assert sampling.expected_batch_size(num_records) == num_records / length


def test_disjoint_chunks_do_not_change_the_draw(seeded):
    sampling = DisjointBatches(batch_size=4, num_epochs=2)
    whole = sampling.start(10, seeded(5)).next(6)
    stream = sampling.start(10, seeded(5))
    parts = [stream.next(1), stream.next(4), stream.next(1)]
    np.testing.assert_array_equal(whole.indices, np.concatenate([p.indices for p in parts]))


def test_disjoint_resumes_at_epochs_only(seeded):
    sampling = DisjointBatches(batch_size=4, num_epochs=3)
    assert [sampling.resume_step(10, s) for s in (0, 1, 3, 4)] == [0, 3, 3, 6]
    assert sampling.start(10, seeded(1), first_step=3).next(6).mask.sum() == 20
    with pytest.raises(ArgumentError, match="resume_step"):
        sampling.start(10, seeded(1), first_step=4)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: PoissonSampling(sampling_prob=1.1, num_steps=1, max_batch_size=1), "sampling_prob"),
        (lambda: PoissonSampling(sampling_prob=0.0, num_steps=1, max_batch_size=1), "sampling_prob"),
        (lambda: PoissonSampling(sampling_prob=float("nan"), num_steps=1, max_batch_size=1), "sampling_prob"),
        (lambda: PoissonSampling(sampling_prob=0.5, num_steps=0, max_batch_size=1), "num_steps"),
        (lambda: PoissonSampling(sampling_prob=0.5, num_steps=1, max_batch_size=0), "max_batch_size"),
        (lambda: PoissonSampling.for_batch_size(11, 10, 1), "batch_size"),
        (lambda: PoissonSampling.for_batch_size(1, 10, 1, tail=0), "tail"),
        (lambda: DisjointBatches(batch_size=0, num_epochs=1), "batch_size"),
        (lambda: DisjointBatches(batch_size=2, num_epochs=1.5), "num_epochs"),
        (lambda: DisjointBatches(batch_size=5, num_epochs=1).start(4, Bytes()), "batch_size"),
        (lambda: DisjointBatches(batch_size=5, num_epochs=1).start(0, Bytes()), "num_records"),
    ],
)
def test_bad_arguments(build, name):
    with pytest.raises(ArgumentError, match=name):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda steps: PoissonSampling(sampling_prob=0.1, num_steps=steps, max_batch_size=8),
        lambda steps: PoissonSampling.for_batch_size(10, 100, steps),
        lambda steps: DisjointBatches(batch_size=8, num_epochs=steps),
    ],
)
def test_more_steps_than_the_accounting_can_hold_are_refused(build):
    build(1_000_000)
    for steps in (1_000_001, 10**9):
        with pytest.raises(ArgumentError, match=r"(num_steps|num_epochs) must be at most 1,000,000"):
            build(steps)


def test_repr_holds_no_index(seeded):
    stream = DisjointBatches(batch_size=4, num_epochs=2).start(10, seeded(5))
    assert repr(stream.next(1)) == "Batches(num_steps=1, max_batch_size=4)"
    assert repr(stream) == "_DisjointStream(step=1)"


def changed(change):
    """Two steps with five slots for records 0 to 9, and one change to them."""
    indices = np.array([[1, 3, 7, 0, 0], [0, 2, 4, 8, 9]], np.int32)
    mask = np.array([[True, True, True, False, False], [True] * 5])
    return Batches(*change(indices, mask))


def put(place, value):
    def change(indices, mask):
        indices[place] = value
        return indices, mask

    return change


def masked(place, value):
    def change(indices, mask):
        mask[place] = value
        return indices, mask

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda i, m: (i, m.astype(np.int64) << 24), id="a mask that multiplies"),
        pytest.param(lambda i, m: (i, m.astype(np.uint8)), id="a mask of numbers"),
        pytest.param(lambda i, m: (i.astype(np.int64), m), id="wide indices"),
        pytest.param(lambda i, m: (i[:, :4], m[:, :4]), id="another size"),
        pytest.param(lambda i, m: (i, m[:, :4]), id="mask of another size"),
        pytest.param(lambda i, m: (i[0], m[0]), id="one step without its axis"),
        pytest.param(put((1, slice(None)), 7), id="one record in every slot"),
        pytest.param(put((1, 1), 0), id="a record twice"),
        pytest.param(put((1, 2), 1), id="not increasing"),
        pytest.param(put((1, 4), 10), id="beyond the table"),
        pytest.param(put((1, 0), -1), id="negative"),
        pytest.param(put((0, 4), 5), id="a record in the padding"),
        pytest.param(masked((1, 2), False), id="a hole"),
    ],
)
def test_a_batch_of_another_party_names_every_record_at_most_once(change):
    with pytest.raises(ArgumentError, match="a batch must"):
        changed(change).check(10, 5)


def test_batches_that_were_drawn_pass_their_check():
    untouched = changed(lambda indices, mask: (indices, mask))
    assert untouched.check(10, 5) is untouched
    poisson = PoissonSampling(sampling_prob=0.2, num_steps=6, max_batch_size=40)
    for sampling in (poisson, DisjointBatches(batch_size=30, num_epochs=2)):
        drawn = sampling.start(100, InsecureSeededSource(3)).next(6)
        assert drawn.check(100, sampling.max_batch_size) is drawn
