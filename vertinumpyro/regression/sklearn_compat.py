"""scikit-learn's base classes, or stand-ins that say what is missing: the package imports without the extra.

Fits that make their own plan: how many budgets an estimator and its clones have spent, and a warning that ε adds up.

scikit-learn's model selection fits clones: `cross_val_score(model, X, y, cv=5)` is five releases about the same people,
`GridSearchCV` one for each fold of each setting and one more. Clones therefore know the estimator they come from, and
count together.
"""

from __future__ import annotations

import secrets
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vertinumpyro.evaluation.plot_style import missing_extra
from vertinumpyro.privacy import Plan, PrivacyWarning
from vertinumpyro.privacy.ledger import begun

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
        from sklearn.utils.metaestimators import available_if
        from sklearn.utils.validation import check_is_fitted, validate_data
    except ModuleNotFoundError:

        class BaseEstimator:
            """Stand-in."""

        class ClassifierMixin:
            """Stand-in."""

        class RegressorMixin:
            """Stand-in."""

        class TransformerMixin:
            """Stand-in."""

        def available_if(_: Any) -> Any:
            """Stand-in."""
            return lambda method: method

        def validate_data(*_: Any, **__: Any) -> Any:
            """Stand-in."""
            raise missing_extra("scikit-learn")

        check_is_fitted = validate_data


class OwnBudgets(NamedTuple):
    """Budgets of one process that fits without `plan=` have spent.

    :ivar count: how many.
    :ivar epsilon: the sum of their ε, which bounds what they say together of a person who was in all of them.
    :ivar delta: the sum of their δ.
    """

    count: int
    epsilon: float
    delta: float


_ANNOUNCED = (2, 10, 100, 1000, 10_000)
_lock = threading.Lock()
_spent: dict[str, OwnBudgets] = {}


class SpendsOwnBudgets(BaseEstimator):
    """An estimator whose `fit` can make its own plan. Abstract.

    A budget is counted by the estimator that it began with, not by its settings and by nothing of the data: clones,
    copies and pickles carry a random name of it. Two estimators that were built apart count apart, and so do two
    processes (`n_jobs`).
    """

    _origin: str | None = None

    @property
    def own_budgets(self) -> OwnBudgets:
        """What fits without `plan=` of this estimator, of the one that it was cloned from, and of all its clones have
        spent in this process.
        """
        return _spent.get(self._origin or "", OwnBudgets(0, 0.0, 0.0))

    def __sklearn_clone__(self) -> Any:
        """scikit-learn's clone, which counts with this estimator."""
        copy: Any = super().__sklearn_clone__()
        copy._origin = self._named_origin()
        return copy

    def _named_origin(self) -> str:
        if self._origin is None:
            self._origin = secrets.token_hex(16)
        return self._origin

    @contextmanager
    def _counting(self, run: AbstractContextManager[Any], plan: Plan, own: bool) -> Iterator[Any]:
        """A run, once it is open; an own plan is counted then, as nothing can refuse it any more."""
        with run as opened:
            if own:
                self._count(plan)
            yield opened

    @contextmanager
    def _counting_if_begun(self, plan: Plan, own: bool) -> Iterator[None]:
        """A fit that opens its run itself; an own plan is counted where it was begun, however the fit ends."""
        try:
            yield
        finally:
            if own and begun(plan):
                self._count(plan)

    def _warn_of_another(self, plan: Any) -> None:
        """Before it is spent, so that a warning that is an error stops it."""
        spent = self.own_budgets
        number = spent.count + 1
        if spent.count == 0 and (fits := fits_of_model_selection()):
            warnings.warn(
                f"this will fit {type(self).__name__} {fits} times, and every fit makes a privacy budget of its own: "
                f"{fits} times epsilon = {_epsilon(plan):g}, where all settings have this one, and nothing is spent so "
                "far. On the same people they add up. Its scores read real labels, which is not DP",
                PrivacyWarning,
                stacklevel=5,
            )
        if number not in _ANNOUNCED:
            return
        warnings.warn(
            f"fit without plan= makes a privacy budget of its own each time: with this one, {type(self).__name__} and "
            f"its clones have spent {number} budgets in this process. On the same people they add up, to epsilon = "
            f"{spent.epsilon + _epsilon(plan):g} so far, and every further fit adds its own; own_budgets counts "
            "them. Cross-validation and grids are many fits, and their scores read real labels, which is not DP",
            PrivacyWarning,
            stacklevel=5,
        )

    def _count(self, plan: Any) -> None:
        with _lock:
            count, epsilon, delta = self.own_budgets
            _spent[self._named_origin()] = OwnBudgets(count + 1, epsilon + _epsilon(plan), delta + plan.delta)


# scikit-learn tells an estimator neither how many fits are to come nor how it numbered labels: its frames have both.
# Under a release that names them otherwise nothing is found, and nothing is said.


def fits_of_model_selection() -> int | None:
    """How many fits of a search, `cross_validate` or `cross_val_predict` this one is the first of."""
    fits, refit = 1, False
    for name, found in _frames_of_model_selection():
        if name == "_fit_and_score":
            for progress in ("split_progress", "candidate_progress"):
                fits *= (found.get(progress) or (0, 1))[1]
        elif name in ("cross_validate", "cross_val_predict") and hasattr(found.get("cv"), "get_n_splits"):
            groups = (found.get("params") or {}).get("groups")
            fits *= found["cv"].get_n_splits(found.get("X"), found.get("y"), groups)
        refit = refit or any(bool(getattr(found.get(key), "refit", False)) for key in ("caller", "self"))
    return None if fits == 1 else fits + refit


def labels_as_given(y: Any) -> Any:
    """Labels as the table has them, where `cross_val_predict` has numbered them by its encoder."""
    if isinstance(y, np.ndarray) and y.dtype.kind in "iu":
        for name, found in _frames_of_model_selection():
            if name == "cross_val_predict" and found.get("le") is not None:
                return found["le"].classes_[y]
    return y


def _frames_of_model_selection() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The names and variables of scikit-learn's functions that call, the innermost first."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            yield frame.f_code.co_name, frame.f_locals


def _epsilon(plan: Any) -> float:
    """What the plan was calibrated to; where it does not keep that, the largest ε of those whom it covers."""
    target = getattr(plan, "target_epsilon", None)
    return plan.epsilon() if target is None else target
