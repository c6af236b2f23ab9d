"""The RAND Health Insurance Experiment: 20,190 person-years, shipped inside statsmodels."""

import pandas as pd

from vertinumpyro.core.errors import DataError
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.integer_columns import IntegerColumn
from vertinumpyro.data.real_columns import BinnedColumn
from vertinumpyro.data.schema import PartySchema, Schema

# The experiment's design, published in the documentation of the file, fixes every domain here.

# ln(coinsurance + 1) for the plans' rates of 0, 25, 50, 95 and 100 percent: five labels, not a scale.
_LOG_COINSURANCE = (0.0, 3.258096, 3.931826, 4.564348, 4.61512)

# ln(max(1, payment)): zero for who gets none, and lumps at the family payments of $450, $750 and $1000.
# A density cannot carry a lump, so each is an atom (an edge given twice); wide steps lie between. Coarse on
# purpose: every further cell costs noise in a private fit.
_LOG_PAYMENT = (*(0.0, 0.0, 5.0, 6.109248, 6.109248, 6.620073, 6.620073, 6.907755, 6.907755, 7.25),)

# ln(max(1, MDE / coinsurance)): zero under an individual deductible, and lumps at the plans' caps, such
# as $450 / 0.95, $1000 / 0.95 and $1000 / 0.25.
_LOG_EXPENDITURE = (
    *(0.0, 0.0, 5.5, 6.160541, 6.160541, 6.959049, 6.959049, 7.600903, 7.600903, 8.006368, 8.006368),
    *(8.294049, 8.294049, 8.5),
)

# Visits: nearly a third are 0 and the tail is long, which a Poisson mixture would need many components
# for; single visits up to 4 and ever wider groups above keep both. The last group is closed.
_VISITS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 25, 80)

# 0 and 1 are answers; what lies between was imputed by the survey, mostly with means below 1/4.
_LIMITATION = (0.0, 0.0, 0.25, 1.0, 1.0)

# An index of chronic diseases from 0 (none, an atom); steps of 4 widen where people are few.
_DISEASES = (0.0, 0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 30.0, 60.0)

SCHEMA = Schema(
    {
        "insurer": PartySchema(
            {
                "lncoins": CategoricalColumn(categories=_LOG_COINSURANCE),
                "idp": BinaryColumn(),
                "lpi": BinnedColumn(edges=_LOG_PAYMENT),
                "fmde": BinnedColumn(edges=_LOG_EXPENDITURE),
                "mdvis": IntegerColumn(edges=_VISITS),
            }
        ),
        "clinic": PartySchema(
            {
                "physlm": BinnedColumn(edges=_LIMITATION),
                "disea": BinnedColumn(edges=_DISEASES),
                "hlthg": BinaryColumn(),
                "hlthf": BinaryColumn(),
                "hlthp": BinaryColumn(),
            }
        ),
    }
)


def load_rand_hie() -> VerticalDataset:
    """Return the RAND Health Insurance Experiment, 20,190 records, plan at the insurer, health at the clinic.

    Columns: ``lncoins`` (ln of coinsurance percent + 1), ``idp`` (individual deductible), ``lpi`` (ln of
    the participation incentive), ``fmde`` (ln of the maximum expenditure), ``mdvis`` (visits to a doctor);
    ``physlm`` (physical limitation), ``disea`` (index of chronic diseases), ``hlthg``, ``hlthf``, ``hlthp``
    (self-rated health good, fair, poor). The table is in the public domain.

    Raises:
        DataError: statsmodels is not installed.
    """
    frame = _table()
    if frame is None:
        raise DataError("load_rand_hie needs statsmodels; run: pip install 'vertinumpyro[report]'")
    return VerticalDataset.from_pooled(SCHEMA, frame)


def _table() -> pd.DataFrame | None:
    try:
        from statsmodels.datasets import randhie
    except ImportError:
        return None
    return randhie.load_pandas().data
