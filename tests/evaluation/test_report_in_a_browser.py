"""The report on a wide screen and on a telephone's: nothing is wider than the screen, in a real browser."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import PartySchema, RealColumn, Schema
from vertinumpyro.evaluation import (
    ReleasedShares,
    ReportContent,
    ReportFigure,
    ReportTable,
    ReportText,
    plot_adversaries,
    plot_beside_release,
    render_report,
)

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NAMES = [f"a_rather_long_name_of_a_column_{number}" for number in range(14)]
MEASURE = """<script>
const wide = [...document.querySelectorAll("html, body, .scroll, pre, figure, section")];
const over = wide.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.tagName + "." + e.className);
const picture = document.querySelector("picture img");
const told = {width: innerWidth, over: over, narrow: picture.currentSrc !== picture.src};
const page = parent.document;
page.body.append(Object.assign(page.createElement("output"), {textContent: JSON.stringify(told)}));
</script>"""


@pytest.fixture(scope="module")
def report():
    schema = Schema({"clinic": PartySchema({name: RealColumn(bounds=(0, 1)) for name in NAMES})})
    shares = dict.fromkeys(NAMES, ReleasedShares(np.full(4, 0.25), 0.01, np.full(4, 0.25)))
    row = {"adversary": "clinic and insurer and registry together", "epsilon": "1.000", "relation": "replace"}
    records = pd.DataFrame({f"record {n}": ["2024-01-01 12:30"] * len(NAMES) for n in range(6)}, index=pd.Index(NAMES))
    content = ReportContent(
        title="A private synthetic twin",
        summary=[ReportText(text="a" * 90, not_dp=False)],
        facts={"plan": "0123456789abcdef" * 4},
        adversary_rows=[{**row, "knows": "its own columns, its own noise", "status": "VPDP, proved"}] * 3,
        figures=[
            ReportFigure(figure=plot_adversaries([row]), caption="ε", not_dp=False, section="Privacy"),
            ReportFigure(
                figure=plot_beside_release(shares, schema),
                narrow=plot_beside_release(shares, schema, num_across=1),
                caption="columns",
                not_dp=False,
            ),
        ],
        tables=[ReportTable(frame=records, caption="Its first records.", not_dp=True)],
        code='twin = pd.read_parquet("synthetic.parquet")  # ' + "as in the tables " * 9,
    )
    return render_report(content)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_scrolls_sideways(report, tmp_path, width):
    """In a frame, since Chromium's own windows are never narrower than 500 pixels."""
    page, measured = tmp_path / "page.html", html.escape(report.replace("</body>", MEASURE + "</body>"))
    frame = f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{measured}"></iframe>'
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>', encoding="utf-8")
    options = ("--window-size=1400,1000", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    shown = subprocess.run([str(BROWSER), *QUIET, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    (told,) = re.findall(r"<output>(.*)</output>", shown.stdout)
    assert json.loads(told) == {"width": width, "over": [], "narrow": width == 400}


def test_a_narrow_screen_has_rules_for_whatever_is_wide(report):
    (narrow,) = re.findall(r"@media screen and \(max-width: 40rem\) \{(.*?)\n\}", report, re.DOTALL)
    assert "overflow-x" not in narrow
    assert "data-label" in narrow
    assert '<source media="(max-width: 40rem)"' in report


def test_a_table_is_a_table_to_a_screen_reader_at_any_width(report):
    for role in ("table", "rowgroup", "row", "columnheader", "rowheader", "cell"):
        assert f'role="{role}"' in report
    labels = set(re.findall(r'<td role="cell" data-label="([^"]*)"', report))
    assert {"record 0", "ε", "Status"} <= labels
    headings = [int(level) for level in re.findall(r"<h([1-6])", report)]
    assert headings[0] == 1
    assert max(np.diff(headings)) <= 1  # no level is left out
