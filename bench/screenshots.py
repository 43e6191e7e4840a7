"""The pictures of docs/dashboard.md: pages in a real Chromium, on a desk and on a
phone, light and dark.

``python -m bench.screenshots STORE [--to docs]`` starts the dashboard over a store,
such as that of ``cmsspark demo
--days 90``, and writes PNGs. Look at each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bench.dashboard import CHROMIUM, server

REPO = Path(__file__).resolve().parents[1]
#: Name of the picture, path of the page, width, height and theme.
SHOTS = (
    ("dashboard-popularity", "/popularity", 1280, 1120, "light"),
    ("dashboard-data-dark", "/data", 1100, 560, "dark"),
    ("dashboard-site-phone", "/sites", 390, 640, "light"),
)


async def shoot(address: str, target: Path) -> None:
    """Write all pictures."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, path, width, height, theme in SHOTS:
            window = {"width": width, "height": height}
            page: Any = await browser.new_page(viewport=window, color_scheme=theme, locale="en-GB")
            page.set_default_timeout(300_000)
            await page.goto(address + path)
            await page.wait_for_selector("html[data-drawn]", state="attached")
            content = await page.screenshot()
            (target / f"{name}.png").write_bytes(content)
            print(f"{target / name}.png: {(target / f'{name}.png').stat().st_size / 1000:.0f} kB")
            await page.close()
        await browser.close()


def main() -> None:
    """Take the pictures of the store of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--to", type=Path, default=REPO / "docs")
    chosen = parser.parse_args()
    chosen.to.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="cmsspark-shots-") as cache,
        server(chosen.store, Path(cache)) as running,
    ):
        asyncio.run(shoot(running.address, chosen.to))


if __name__ == "__main__":
    main()
