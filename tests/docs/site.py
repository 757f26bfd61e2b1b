"""``python -m tests.docs.site FOLDER``: links of a built site that lead nowhere, and what it would fetch."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads of itself. A link that a reader may follow is another matter.
LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "audio": ("src",),
}
LOADED_LINKS = {"stylesheet", "preload", "modulepreload", "icon", "shortcut icon", "preconnect", "dns-prefetch"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [values[name] for name in LOADED.get(tag, ()) if name in values]
        if tag == "link" and values.get("rel", "") in LOADED_LINKS:
            self.loaded.append(values["href"])


def faults(folder: Path) -> list[str]:
    """A sentence for each link within the site that leads nowhere, and each thing that is loaded from elsewhere."""
    pages: dict[Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        if "_static" not in path.relative_to(folder).parts:
            pages[path.resolve()] = page = _Page()
            page.feed(path.read_text())
    messages = []
    for path, page in pages.items():
        here = path.relative_to(folder.resolve())
        for link in page.loaded:
            url = urlsplit(link)
            if url.scheme not in ("", "data") or url.netloc:
                messages.append(f"{here} loads {link}")
            elif not url.scheme and not (path.parent / unquote(url.path)).exists():
                messages.append(f"{here} lacks {link}")
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.exists():
                messages.append(f"{here} links to {link}, which is not there")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].names:
                messages.append(f"{here} links to {link}, a place that is not there")
    return messages


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site} holds no site: build it with `make docs`")
    if wrong := faults(site):
        sys.exit("\n".join(wrong))
    print(f"{len(list(site.rglob('*.html')))} pages: every link leads somewhere, and nothing is loaded from elsewhere")
