"""Screenshots of the demo's page, for people to look at: ``python -m tests.report.screenshots`` writes docs/images/.

The page is that of ``make demo``, or the one that is named, at the widths and schemes that the tests look at. Headless
Chromium takes the pictures; no test compares them, since fonts differ from machine to machine.
"""

import html
import itertools
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

from bornbiased_jax import io

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "images"
WIDTHS, SCHEMES = (390, 768, 1280), ("light", "dark")
HEIGHT = 1200
LARGEST = 150_000
PAGE = ROOT / "out" / "demo" / "index.html"
# Chromium's windows are no narrower than 500 pixels; a frame is as narrow as it is told.
FRAME = (
    '<!DOCTYPE html><html lang="en"><body style="margin:0">'
    '<iframe title="page" style="border:0;width:{width}px;height:{height}px" srcdoc="{page}"></iframe></body></html>'
)


def browser() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def names() -> list[str]:
    """Files of all screenshots."""
    return [f"page-{width}-{scheme}.png" for width, scheme in itertools.product(WIDTHS, SCHEMES)]


def take(chromium: str, text: str, width: int, dark: bool) -> bytes:
    """The upper part of a page at a width as a PNG of few colors.

    Raises:
        subprocess.CalledProcessError: the browser failed.
    """
    with tempfile.TemporaryDirectory(prefix="screenshot") as place:
        folder = Path(place)
        (folder / "frame.html").write_text(FRAME.format(width=width, height=HEIGHT, page=html.escape(text)))
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={max(width, 500)},{HEIGHT}", "--force-device-scale-factor=1",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=20000",
             f"--user-data-dir={folder / 'profile'}", f"--screenshot={folder / 'shot.png'}",
             (folder / "frame.html").as_uri()],
            capture_output=True, timeout=240, check=True,
        )  # fmt: skip
        with Image.open(folder / "shot.png") as image:
            cut = image.convert("RGB").crop((0, 0, width, HEIGHT))
    stream = BytesIO()
    cut.quantize(32, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def main() -> None:
    """Write all of them."""
    chromium = browser()
    if chromium is None:
        sys.exit("Chromium is absent: install it with the system's package manager")
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    if not path.is_file():
        sys.exit(f"{path} is not there: make it with `make demo`, or name a page")
    text = path.read_text()
    FOLDER.mkdir(exist_ok=True)
    for name, (width, scheme) in zip(names(), itertools.product(WIDTHS, SCHEMES), strict=True):
        image = io.write_bytes(FOLDER / name, take(chromium, text, width, scheme == "dark"))
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
