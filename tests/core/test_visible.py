"""Characters that nobody sees: shown as escapes, found in names."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from vertinumpyro.core.errors import hidden_in, visible


@given(st.text())
def test_what_is_visible_hides_nothing_and_keeps_the_rest(text):
    shown = visible(text)
    assert hidden_in(shown) == ""
    assert all(unicodedata.category(one)[0] != "C" for one in shown)
    assert visible(shown) == shown
    assert (shown == text) == (hidden_in(text) == "")


def test_what_hides_is_told_as_an_escape():
    assert visible("a\x1b[35A\u202e\n\u200bb", keep="\n") == "a\\x1b[35A\\u202e\n\\u200bb"
    assert hidden_in("a\ud800") == "\\ud800"
    assert visible("Größe 年龄 😀 x") == "Größe 年龄 😀 x"
