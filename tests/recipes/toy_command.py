"""`--method ridge`: least squares with a stated ridge, as CONTRIBUTING's recipe for a command has it."""

from vertinumpyro.cli.methods.regression import LinearCommand


class RidgeCommand(LinearCommand):
    """Linear regression whose objective has a ridge of N/100."""

    name = "ridge"

    def __init__(self, config):
        super().__init__(config)
        self.method.set_params(estimator="minimiser")

    def plan(self, facts):
        self.method.set_params(ridge=facts.num_records / 100)
        return super().plan(facts)

    def facts(self, plan):
        return {**super().facts(plan), "ridge": f"{plan.num_records / 100:g}"}
