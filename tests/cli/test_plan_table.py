"""The privacy table on terminals of every width."""

import io
import re

import pytest
from rich.console import Console

from vertinumpyro.cli.plan_table import AdversaryTable, plan_view, privacy_legend, schema_table
from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema
from vertinumpyro.evaluation.report import RELATIONS
from vertinumpyro.privacy import GradientPlan, NeighbouringRelation, NoiseSource, PoissonSampling
from vertinumpyro.reports.plain_language import plan_facts, rounded_up

SHORT = ("insurer", "clinic")
LONG = ("university_hospital_of_the_north", "Landesversicherungsanstalt", "tax office of the second district")
MANY = tuple(f"branch_{number}_of_the_savings_bank" for number in range(6))
PLANS = [SHORT, LONG, MANY, ("a", "b")]
WIDTHS = [40, 60, 72, 80, 100, 120, 200]
DELTA = f"{1 / 20_191:g}"
HEADERS = "adversary, and what it knows besides the releases: ε δ σ/C guarantee relation proof nothing compare only"


def plan(parties=SHORT, **changes):
    settings = {
        "sampling": PoissonSampling(sampling_prob=0.05, num_steps=100, max_batch_size=120),
        "clip_norm": 1.0, "noise_multiplier": 2.0, "noise": NoiseSource(num_parties=len(parties)), "grid_bits": 20,
        "num_records": 20_190, "parties": parties, "delta": 1 / 20_191,
    }  # fmt: skip
    return GradientPlan(**{**settings, **changes})


def rendered(renderable, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def words(text):
    return set(re.findall(r"[^\s,;:─]+", text))


def expected_words(made):
    cells = [HEADERS]
    for row in made.table_rows():
        cells += [row["adversary"], *row["knows"], row["guarantee"], row["relation"].replace("_", "/"), row["proof"]]
        cells += [rounded_up(row["epsilon"]), f"{row['delta']:g}", f"{row['noise_multiplier']:.3g}"]
    return words(" ".join(cells))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("parties", PLANS, ids=["short", "long", "many", "letters"])
def test_no_word_is_cut_and_none_is_missing(parties, width):
    made = plan(parties)
    shown = rendered(AdversaryTable(made), width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert words(shown) <= expected_words(made)
    headers = words("adversary, and what it knows besides the releases: guarantee relation proof")
    assert expected_words(made) - headers <= words(shown)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_adversary_has_its_own_numbers(width):
    """Read back from the layout: the name's line, or the next, has its ε."""
    for parties in (SHORT, LONG):
        made = plan(parties)
        lines = rendered(AdversaryTable(made), width).splitlines()
        for row in made.table_rows():
            starts = [i for i, line in enumerate(lines) if line.startswith(row["adversary"][:16].rstrip())]
            near = [" ".join(lines[i : i + 2]) for i in starts]
            assert any(rounded_up(row["epsilon"]) in words(text) for text in near), (row["adversary"], lines)


def test_eighty_columns_keep_a_table_whose_numbers_stand_below_each_other():
    lines = rendered(AdversaryTable(plan(LONG)), 80).splitlines()
    rows = [line for line in lines if DELTA in line]
    assert len(rows) == len(plan(LONG).table_rows())
    assert len({line.index(DELTA) for line in rows}) == 1


def test_a_name_wider_than_the_terminal_is_broken_but_whole():
    name = "a" * 50 + "z" * 50
    shown = rendered(AdversaryTable(plan((name, "clinic"))), 60)
    assert name in shown.replace("\n", "").replace(" ", "")
    assert "…" not in shown


def test_names_are_no_markup():
    assert "[bold]x" in rendered(AdversaryTable(plan(("[bold]x", "clinic"))), 80)


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_the_legend_defines_the_relations_of_the_table_and_no_other(relation):
    legend = str(privacy_legend(plan(relation=relation)))
    shown = {"replace", "add/remove"} if relation is NeighbouringRelation.REPLACE else {"add/remove"}
    assert {name for name in RELATIONS if f"{name}: {RELATIONS[name]}." in legend} == shown
    assert "zeroed, N is public" in legend


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_plan_or_schema_is_left_out(width):
    unit = RealColumn(bounds=(0.0, 1.0))
    columns = {"systolic_blood_pressure_mmhg": unit, "ward": CategoricalColumn(categories=("day", "night"))}
    schema = Schema({LONG[0]: PartySchema(columns), "b": PartySchema({"income": unit})})
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(*plan_view(plan(LONG), plan_facts(plan(LONG), "fixed_point")), schema_table(schema))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "zeroed" in shown
