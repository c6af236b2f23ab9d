"""The fused protocol in Python's unbounded integers: slow, plain, and the truth for the jitted one.

Written from the definition (section 5 of the design and the roundings that the docstrings claim), not from
the code: wherever that splits numbers into limbs or wide products, this multiplies and divides.
"""

import math
from fractions import Fraction

from vertinumpyro.secure.number_formats import fixed_point_format

ONE = 1 << 30
TAYLOR = [round(2.0**-0.5 * (-math.log(2.0)) ** j / math.factorial(j) * 2.0**30) for j in range(12)]
LOG2E = round(math.log2(math.e) * 2**52) << 8


def ceil_shift(value, shift):
    return -((-value) >> shift)


def exp_nonpositive(x, fractional_bits):
    """Polynomial of 2^-y on 30 bits, every product floored."""
    if x == 0:
        return ONE
    exponent = (-x * LOG2E) >> (fractional_bits + 30)
    whole, centred = min(exponent >> 30, 62), (exponent & (ONE - 1)) - ONE // 2
    result = 0
    for coefficient in reversed(TAYLOR):
        result = ((result * centred) >> 30) + coefficient
    return min(result, ONE) >> whole


def clip_norm_less_slack(shape):
    slack = Fraction((shape.num_parties + 1) * shape.num_components * 1024, ONE)
    return Fraction(shape.clip_norm) * (1 - slack)


class NormScale:
    """Squares of encoded scores over C^2, with 24 fractional bits, rounded up."""

    def __init__(self, shape):
        self.bits = fixed_point_format(shape).score_bits
        exponent = math.frexp(shape.clip_norm)[1] - 1
        self.exponent = exponent
        self.inverse = math.ceil(Fraction(4) ** exponent * 2**60 / clip_norm_less_slack(shape) ** 2)

    def apply(self, square, fractional_bits):
        return ceil_shift(square * self.inverse, 60 + fractional_bits + 2 * self.exponent - 24)

    def plated(self, e, scores):
        total = 0
        for weight, row in zip(e, scores, strict=True):
            q = self.apply(sum(x * x for x in row), 2 * self.bits)
            total += ceil_shift(weight * ceil_shift(weight * q, 30), 30)
        return total

    def shared(self, e, scores):
        shift = 2 * (30 + self.bits - 16) - 24 + 2 * self.exponent
        square = 0
        for column in range(len(scores[0])):
            y = sum(weight * row[column] for weight, row in zip(e, scores, strict=True)) >> 16
            square += ceil_shift(max(abs(y), abs(y + 1)) ** 2, shift)
        return self.apply(square, 24 - 2 * self.exponent)


def plated_rows(inputs):
    """Each party's plated scores with its tables written out: [n][K][all d]."""
    for plated, tables in zip(inputs.plated, inputs.tables, strict=True):
        yield [
            [[*row, *(x for t in tables for x in t.scores[t.codes[i]][k])] for k, row in enumerate(rows)]
            for i, rows in enumerate(plated)
        ]


def record_weights(shape, norm, inputs, record):
    """W of one record, from `fixed_point.Encoded` with Python lists of integers."""
    parties = [log_density[record] for log_density in inputs.log_densities[:-1]]
    z = [sum(values) for values in zip(*parties, inputs.log_densities[-1], strict=True)]
    e = [exp_nonpositive(value - max(z), 24) for value in z]
    squared_norm = norm.shared(e, inputs.prior_scores)
    for plated, shared in zip(plated_rows(inputs), inputs.shared, strict=True):
        squared_norm += norm.plated(e, plated[record]) + norm.shared(e, shared[record])
    w = math.isqrt(2**84 // max(sum(e) ** 2 >> 36, squared_norm))
    return [(w * weight) >> 30 for weight in e]


def ring_sum(shape, inputs, mask):
    """The integer vector that `fixed_point.ring_sum` must return."""
    norm = NormScale(shape)
    n, K = shape.batch_size, shape.num_components
    W = [record_weights(shape, norm, inputs, i) if mask[i] else [0] * K for i in range(n)]

    def weighted(rows):  # rows[n][k]: the scores of one coordinate
        return sum(W[i][k] * rows(i, k) for i in range(n) for k in range(K))

    out = [weighted(lambda i, k, j=j: inputs.prior_scores[k][j]) for j in range(len(inputs.prior_scores[0]))]
    for plated, shared in zip(plated_rows(inputs), inputs.shared, strict=True):
        for k in range(K):
            out += [sum(W[i][k] * plated[i][k][j] for i in range(n)) for j in range(len(plated[0][0]))]
        out += [weighted(lambda i, k, j=j, b=shared: b[i][k][j]) for j in range(len(shared[0][0]))]
    return out
