import base64
import html
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.evaluation import (
    ReportContent,
    ReportFigure,
    ReportTable,
    ReportText,
    plot_adversaries,
    plot_objective,
    plot_style,
    render_report,
    write_report,
)
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE
from vertinumpyro.evaluation.report import RELATIONS

NASTY = "<script>alert('x & y')</script>\""
ROW = {
    "adversary": "clinic",
    "knows": "its columns",
    "relation": "replace",
    "epsilon": "1.82",
    "delta": "1e-05",
    "effective_noise": "1.44",
    "status": "proved",
}


@pytest.fixture
def content() -> ReportContent:
    return ReportContent(
        title="Twin",
        summary=[
            ReportText(text="Released: a twin.", not_dp=False),
            ReportText(text="It is 12% closer to the real table.", not_dp=True),
        ],
        facts={"epsilon": "1.82"},
        adversary_rows=[ROW, {"adversary": "outside analyst"}],
        figures=[
            ReportFigure(figure=plot_adversaries([ROW]), caption="public", not_dp=False, section="Privacy"),
            ReportFigure(figure=plot_objective([2.0, 1.0]), caption="trace", not_dp=True, section="Objective"),
        ],
        tables=[
            ReportTable(
                frame=pd.DataFrame({"TVD": [0.123456, None]}, index=["joint", "apart"]),
                caption="tvd",
                not_dp=True,
            )
        ],
        configuration={"steps": "20"},
        warnings=["a simulation"],
    )


class Outline(HTMLParser):
    """Tags with their attributes, and a check that they nest."""

    VOID = frozenset({"meta", "img", "br", "hr", "link", "source"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_report_is_self_contained_and_well_formed(content, tmp_path):
    path = write_report(tmp_path / "report.html", content)
    text = path.read_text(encoding="utf-8")
    outline = Outline(text)
    assert not outline.open
    without_images = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<iframe", without_images)
    images = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert len(images) == 2
    for image in images:
        assert image["alt"]
        assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    scopes = [attributes.get("scope") for tag, attributes in outline.tags if tag == "th"]
    assert scopes
    assert None not in scopes


def test_adversary_table_has_a_row_each(content):
    text = render_report(content)
    table = text[text.index("<table role=") : text.index("</table>")]
    assert table.count('<th scope="row"') == 2
    for cell in ROW.values():
        assert cell in table
    assert "–" in table  # what the second row leaves out


@pytest.mark.parametrize("relation", ["replace", "add/remove"])
def test_the_adversary_table_defines_the_relations_that_occur_in_it(relation):
    text = render_report(ReportContent(title="Twin", adversary_rows=[{**ROW, "relation": relation}]))
    found = {name for name in RELATIONS if html.escape(f" {name}: {RELATIONS[name]}.") in text}
    assert found == {relation}
    assert "zeroed, N is public" in RELATIONS["add/remove"]


def test_every_item_that_is_not_dp_is_badged_and_listed(content):
    text = render_report(content)
    assert {"trace", "tvd"} < set(content.not_dp_captions())
    for caption in ("trace", "tvd"):
        assert f'<span class="badge">{NOT_DP_NOTE}</span> {caption}<' in text
        assert f"<li>{caption}</li>" in text
    assert "</span> public<" not in text
    assert "<li>public</li>" not in text


def test_a_report_without_such_items_says_so_and_may_be_released(content):
    public = ReportContent(title="Twin", figures=content.figures[:1], adversary_rows=[ROW])
    text = render_report(public, release=True)
    assert NOT_DP_NOTE not in text
    assert "Nothing in this report was computed on real data" in text


def test_release_refuses_items_that_are_not_dp(content, tmp_path):
    with pytest.raises(PrivacyError, match="trace"):
        write_report(tmp_path / "report.html", content, release=True)
    assert not list(tmp_path.iterdir())


def test_a_paragraph_that_is_not_dp_is_badged_listed_and_refused_like_a_figure(content):
    """The refusal and the list name it by its place: its words may hold figures of the real table."""
    text = render_report(content)
    assert f'<p><span class="badge">{NOT_DP_NOTE}</span> It is 12% closer to the real table.</p>' in text
    assert "<p>Released: a twin.</p>" in text
    assert "<li>paragraph 2 of the summary</li>" in text
    public, internal = content.summary
    with pytest.raises(PrivacyError, match="paragraph 2 of the summary") as refused:
        render_report(ReportContent(title="Twin", summary=[public, internal]), release=True)
    assert "12%" not in str(refused.value) + repr(internal)
    assert "Released: a twin." in render_report(ReportContent(title="Twin", summary=[public]), release=True)


def test_a_paragraph_must_say_whether_it_is_dp():
    with pytest.raises(ArgumentError, match=r"summary\[0\].*ReportText"):
        render_report(ReportContent(title="Twin", summary=["It is 12% closer."]))  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"summary.*ReportText"):
        render_report(ReportContent(title="Twin", summary="It is 12% closer."))  # type: ignore[arg-type]


def test_every_text_is_escaped():
    figure = ReportFigure(figure=plot_objective([1.0]), caption=NASTY, not_dp=True, section=NASTY, alt=NASTY)
    frame = pd.DataFrame({NASTY: [NASTY]}, index=pd.Index([NASTY], name=NASTY))
    content = ReportContent(
        title=NASTY,
        summary=[ReportText(text=NASTY, not_dp=True)],
        facts={NASTY: NASTY},
        adversary_rows=[dict.fromkeys(ROW, NASTY)],
        figures=[figure],
        tables=[ReportTable(frame=frame, caption=NASTY, not_dp=False, section=NASTY)],
        configuration={NASTY: NASTY},
        notes=[NASTY],
        warnings=[NASTY, "$title ${x}"],
    )
    text = render_report(content)
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#x27;x &amp; y&#x27;)&lt;/script&gt;&quot;" in text
    assert "$title ${x}" in text
    assert not Outline(text).open


def test_equal_content_makes_equal_files(content):
    assert render_report(content) == render_report(content)


def test_errors_name_the_argument(content, tmp_path):
    with pytest.raises(ArgumentError, match="path"):
        write_report(tmp_path / "nowhere" / "report.html", content)
    with pytest.raises(ArgumentError, match=r"adversary_rows\[0\].*'eps'"):
        render_report(ReportContent(title="t", adversary_rows=[{"eps": "1"}]))


@pytest.mark.parametrize(
    ("name", "kind"), [("東京", "svg+xml"), ("서울", "svg+xml"), ("\U0001d49c", "png"), ("$1 to $2", "png")]
)
def test_names_in_any_script_are_no_boxes_and_nothing_is_warned_of(name, kind):
    with warnings_are_errors():
        figure = plot_adversaries([ROW | {"adversary": name}])
        if kind == "svg+xml" and not plot_style.lacks_glyphs(figure):
            pytest.skip("a font for it is installed")
        text = render_report(
            ReportContent(title="Twin", figures=[ReportFigure(figure=figure, caption="c", not_dp=False)])
        )
    (found,) = re.findall(r'src="data:image/([^;]*);base64,([^"]*)"', text)
    assert found[0] == kind
    if kind == "svg+xml":  # the reader's browser writes it
        assert f">{name}<" in base64.b64decode(found[1]).decode()
    else:
        assert not plot_style.lacks_glyphs(figure)
