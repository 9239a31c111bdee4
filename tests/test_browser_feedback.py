"""The pages of a graded class in a real browser: on a phone, on a desk, by day, by night, whatever stands in them."""

import browser
import pytest
from test_grading_feedback import EVIL, LESSON, row

from labkit.grading import feedback, review

pytestmark = pytest.mark.browser

PICTURES = browser.ROOT / "screenshots"
READABLE = 4.5  # the contrast that WCAG 2.2 asks of text, criterion 1.4.3
CONTRASTS = (browser.ROOT / "tests" / "contrasts.js").read_text(encoding="utf-8")
HOSTILE = EVIL.replace("/", "_")  # a file's name holds no slash
MESSAGE = f"raised ValueError (case 1 of 5)\ncall   f(x={'9' * 300})\nerror  {EVIL}\nlikely  {'long ' * 40}"
STATUSES = ("ok", "wrong", "error", "timeout", "died", "missing", "not-attempted", "ungraded")
SHOWN = {
    "class": {"For you to look at", "right", "not attempted", "student007"},
    f"feedback/{HOSTILE}": {"What your code printed, in the cases of class", "raised an error \u00b7 0 of 3 points"},
}


@pytest.fixture
def graded(tmp_path):
    """The pages of two hundred students, and of one who would like to be more than text."""
    if browser.chromium() is None:
        pytest.skip(browser.NEEDS)
    PICTURES.mkdir(exist_ok=True)
    many = [row(f"student{i:03}", f"1.{1 + i % 3}", STATUSES[i % 8], points=i % 4) for i in range(200)]
    evil = row(HOSTILE, status="error", message=MESSAGE, code=f"> 1  {EVIL * 5}", printed=EVIL * 20, inside=True)
    review.keep(tmp_path, {HOSTILE: [EVIL]})
    feedback.write([*many, evil], LESSON, "Lesson 01", tmp_path)
    return tmp_path


def test_pages_can_be_read_on_a_phone_and_on_a_desk_by_day_and_by_night(graded, tmp_path):
    for name, width in (("phone", 390), ("desk", 1300)):
        with browser.browser_page(tmp_path / name, width=width, height=900) as page:
            said = []
            page.on("dialog", lambda dialog, said=said: said.append(dialog.message))
            page.on("request", lambda asked, said=said: said.append(asked.url) if asked.url[:5] != "file:" else None)
            for path, texts in SHOWN.items():
                page.goto((graded / f"{path}.html").as_uri())
                page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
                for theme in browser.THEMES:
                    page.emulate_media(color_scheme=theme)
                    found = page.evaluate(CONTRASTS, "body")
                    assert texts <= {text for text, _ in found}
                    assert not [pair for pair in found if pair[1] < READABLE]
                    kind = "class" if path == "class" else "feedback"
                    page.screenshot(path=PICTURES / f"grading-{kind}-{name}-{theme}.png")
            assert not said


def test_the_page_of_a_class_leads_to_the_students(graded, tmp_path):
    with browser.browser_page(tmp_path / "own") as page:
        page.goto((graded / "class.html").as_uri())
        page.get_by_role("link", name=HOSTILE).last.click()
        assert page.locator("h1").inner_text() == "Lesson 01"
        assert page.locator("p").first.inner_text().startswith(HOSTILE)
