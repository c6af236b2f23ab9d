"""What the commands know of a method: settings, plan, fit and report. A method is one line of `METHODS`."""

from __future__ import annotations

import abc
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import jax

from vertinumpyro.cli.config import Config
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, VerticalDataset
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.reports.run_report import RunFacts, RunReport
from vertinumpyro.secure import Backend, BetweenProcesses
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Session

METHODS: Mapping[str, str] = {
    "dpvi": "vertinumpyro.cli.methods.dpvi:DPVICommand",
    "vertimrf": "vertinumpyro.cli.methods.tables:VertiMRFCommand",
    "marginals": "vertinumpyro.cli.methods.tables:MarginalsCommand",
    "logistic": "vertinumpyro.cli.methods.regression:LogisticCommand",
    "linear": "vertinumpyro.cli.methods.regression:LinearCommand",
    "bayesian_linear": "vertinumpyro.cli.methods.regression:BayesianLinearCommand",
    "horizontal": "vertinumpyro.cli.methods.dpvi:HorizontalCommand",
    "quality": "vertinumpyro.cli.methods.tables:QualityCommand",
}
"""Name of `--method` -> the class that stands for it, imported when it is asked for."""


CHEATS = (
    "parties that cheat, up to all but one: whatever they send, they learn no more than their row says, or the run "
    "stops. One that cheats may leave out its noise: read every other row as that of one more colluding party. Before "
    "the tables all hear whether they hold the same ids, and no more. A check that fails ends the plan, which is then "
    "spent. Finding common ids, a linkage, holds against parties that follow the protocol"
)
HOLDERS_CHEAT = (
    "parties that cheat, up to all but one: whatever they send, they learn no more than their row says, or the run "
    "stops. One that cheats chooses what its own records add up to, and how many it says it has, before it sees a sum. "
    "It may leave out its noise: read every other row as that of one more colluding party. A check that fails ends the "
    "plan, which is then spent"
)
FOLLOWS = (
    "parties that follow the protocol. One that sends made-up numbers could learn single records of the others, and "
    "nobody would notice: take part only with parties that you trust not to"
)


OF_CELLS = ("bins", "max_cells", "memory_limit", "workload")
"""Of `[mrf]`, what the score of a twin reads too, whatever method drew the twin."""


class CommandMethod(abc.ABC):
    """A method as a configuration describes it. No table is opened here.

    :cvar plan_class: of its plans.
    :cvar own_settings: for sections of the file, the keys that the method reads; others there are refused by name.
    :cvar own_sections: of the file, those that no other method reads but those that name them too.
    :cvar for_holders: whether the parties hold whole records, each other ones, and not columns of the same.
    :ivar method: what a session runs.
    """

    name: ClassVar[str]
    plan_class: ClassVar[type[Plan]]
    own_settings: ClassVar[Mapping[str, tuple[str, ...]]]
    own_sections: ClassVar[tuple[str, ...]] = ()
    for_holders: ClassVar[bool] = False

    method: Any

    def __init__(self, config: Config) -> None:
        self.config = config
        _refuse_other_settings(self)

    @abc.abstractmethod
    def about(self) -> str:
        """The method's settings in a few words."""

    @abc.abstractmethod
    def checked(self) -> Sequence[str]:
        """What can be checked without a table, done, in words."""

    @abc.abstractmethod
    def plan(self, facts: DatasetInfo) -> Plan:
        """The privacy plan; reads schema and N only."""

    @classmethod
    @abc.abstractmethod
    def plan_facts(cls, plan: Any, backend: str) -> dict[str, str]:
        """What a plan fixes, in words, from the plan alone: an approval shows it before any of the model's code runs.

        :param backend: its name, which no plan has.
        """

    @classmethod
    def is_verified(cls, plan: Any) -> bool:
        """Whether all that its parties compute together can be verified: tables, bounded numbers, holders' sums."""
        return cls.for_holders

    @final
    @classmethod
    def facts_of(cls, plan: Any, backend: Backend) -> dict[str, str]:
        """`plan_facts`, and where parties are processes, against which behaviour of theirs the rows hold."""
        facts = cls.plan_facts(plan, backend.info().name)
        if not isinstance(backend, BetweenProcesses):
            return facts
        against = FOLLOWS if cls.unverified(plan, backend) else HOLDERS_CHEAT if cls.for_holders else CHEATS
        return {**facts, "rows hold against": against}

    @final
    @classmethod
    def unverified(cls, plan: Any, backend: Backend) -> str:
        """Why a plan's rows do not hold against parties that cheat; empty where they do."""
        if not cls.is_verified(plan):
            return f"what --method {cls.name} computes under this plan is not verified"
        if backend.verifies_tables:
            return ""
        name = backend.info().name
        return 'the settings say security = "semi-honest"' if name == "crypten" else f"backend {name} verifies nothing"

    def facts(self, plan: Any) -> dict[str, str]:
        """The same, and what follows from the settings too."""
        return self.facts_of(plan, self.method.backend)

    def forecast(self, plan: Any, earlier: Path | None = None) -> Mapping[str, Any]:
        """What the plan's result can be expected to tell, for programs, and under `words` for people; often nothing.

        :param earlier: the folder of an earlier run on such records.
        :raises ArgumentError: there is one, which this method does not read, or cannot.
        """
        if earlier is not None:
            raise ArgumentError(f"--earlier is nothing that --method {self.name} reads; leave it out")
        found = getattr(plan, "forecast", None)
        return {} if found is None else {"words": str(found)}

    def forecast_by_records(self, dataset: VerticalDataset, plan: Any) -> Mapping[str, Any]:
        """The same by the records themselves: NOT DP, for who holds them all, alone; often nothing."""
        return {}

    def time(self, plan: Any) -> FitTime | None:
        """How long a fit and its twin take on this machine, what the parties compute together aside; None: unknown."""
        return None

    @abc.abstractmethod
    def computations(self, facts: DatasetInfo, plan: Any) -> Sequence[tuple[Computation, int]]:
        """What the parties compute together, and how often."""

    @abc.abstractmethod
    def fit(self, data: VerticalDataset | Session, plan: Any, *, run_dir: Path, resume: bool) -> Any:
        """Spends the plan."""

    def stored(self, run_dir: Path, plan: Plan) -> Any | None:
        """What a complete run stored, where that is read rather than computed again from its releases."""
        return None

    @abc.abstractmethod
    def report(self, result: Any) -> RunReport:
        """What the run shows of its result."""

    @final
    def run_facts(self, plan: Plan | None, configuration: Mapping[str, str]) -> RunFacts:
        """What a report cannot know of the result.

        :param plan: whose facts stand in it; None for those that follow from the plan alone.
        """
        run = self.config.run
        return RunFacts(
            rng_key=jax.random.split(random_key(run.seed))[1],
            backend=self.method.backend,
            num_synthetic=run.num_synthetic,
            facts=None if plan is None else self.facts(plan),
            configuration=configuration,
        )

    @final
    @property
    def model_seed(self) -> dict[str, str]:
        """The seed, in words, of methods with a model."""
        return {"seed of the model's randomness": str(self.config.run.seed)}


def method_of(name: str) -> type[CommandMethod]:
    """The class of a method.

    :raises ArgumentError: there is none of that name.
    """
    if name not in METHODS:
        raise ArgumentError(f"--method {name}: choose one of {', '.join(METHODS)}")
    module, _, found = METHODS[name].partition(":")
    return getattr(importlib.import_module(module), found)


def given(section: Any) -> dict[str, Any]:
    """A section's settings that are not None."""
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return {name: value for name, value in values.items() if value is not None}


def max_unreliable(config: Config) -> int:
    """T: a holder always knows its own noise, so coalitions of c are covered where c - 1 others may join it."""
    return max(0, (config.privacy.collusion_threshold or 0) - 1)


def _refuse_other_settings(method: CommandMethod) -> None:
    """A setting that the method does not read would silently do nothing.

    :raises ArgumentError: names the section and the key.
    """
    for section, names in method.own_settings.items():
        settings = getattr(method.config, section)
        defaults = {field.name: field.default for field in dataclasses.fields(settings)}
        for name, value in given(settings).items():
            if name not in names and value != defaults[name] and value:
                raise ArgumentError(
                    f"[{section}] {name} is nothing that --method {method.name} reads; leave it out, or choose another "
                    "method"
                )


def refuse_unread(method: CommandMethod, why: str | None) -> None:
    """Whole sections of a file that the method which the same file leads to does not read.

    Not where the command line names the method, as a file may serve several; nor of what was agreed on or stored.

    :param why: the file leads to it; None where the command line named it.
    :raises ArgumentError: names the section, the key, and why the method is another.
    """
    if why is None:
        return
    config = method.config
    scored = () if config.quality.part is None else OF_CELLS
    settings = {"mrf": config.mrf, "regression": config.regression, "quality": config.quality}
    for section in sorted(settings.keys() - set(method.own_sections)):
        read = {"mrf": scored, "quality": ("part",)}.get(section, ())
        for key in (key for key in given(settings[section]) if key not in read):
            raise ArgumentError(
                f"[{section}] {key} is nothing that --method {method.name} reads (taken as {why}); leave it out, or "
                "choose another method"
            )
