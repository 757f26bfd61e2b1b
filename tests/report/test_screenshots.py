"""Screenshots of the page: there for each width and scheme, small, and made again by a command where Chromium is."""

import io

import pytest
from PIL import Image

from bornbiased_jax.report import page
from tests.report import screenshots
from tests.report.test_page import section  # noqa: F401
from tests.tiers import nightly_except


def corner(image):
    """The color of the page's ground, red, green and blue."""
    return image.convert("RGB").getpixel((2, image.height - 3))


def test_there_is_one_for_each_width_and_scheme():
    assert {path.name for path in screenshots.FOLDER.glob("*.png")} == set(screenshots.names())


@pytest.mark.parametrize("name", screenshots.names())
def test_a_screenshot_is_small_and_shows_its_scheme(name):
    path = screenshots.FOLDER / name
    assert path.stat().st_size < screenshots.LARGEST
    _, width, scheme = path.stem.split("-")
    with Image.open(path) as image:
        assert image.size == (int(width), screenshots.HEIGHT)
        assert (min(corner(image)) > 200) is (scheme == "light") and (max(corner(image)) < 60) is (scheme == "dark")
        # Letters and curves, not an empty page.
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("dark", nightly_except([False, True], True))
def test_a_screenshot_is_made_again(section, dark):  # noqa: F811
    chromium = screenshots.browser()
    if chromium is None:
        pytest.skip("Chromium is absent")
    result = screenshots.take(chromium, page.render("A page", "Its standfirst.", [section]), 390, dark)
    with Image.open(io.BytesIO(result)) as image:
        assert image.size == (390, screenshots.HEIGHT) and (min(corner(image)) > 200) is not dark
