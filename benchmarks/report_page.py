"""How long the report takes to write, to load and to use: 64 prompts x 16 rollouts x 3000 tokens.

python benchmarks/report_page.py [prompts rollouts tokens]
"""

import itertools
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from batches import real
from playwright.sync_api import Page, sync_playwright

from ktae import KTAEConfig
from ktae.report.analysis import Analysis, analyse
from ktae.report.page import write_page
from ktae.report.rollouts import Group, Rollout

# The longest time between two frames is how long the page does not react.
LONGEST_GAP = """() => {
  window.gap = 0;
  let last = performance.now();
  const tick = () => {
    const now = performance.now();
    gap = Math.max(gap, now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


def main(prompts: int = 64, size: int = 16, tokens: int = 3000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        analysing: list[float] = []
        began = time.perf_counter()
        write_page(analyses(prompts, size, tokens, analysing), path, KTAEConfig(), list)
        print(f"{prompts} prompts x {size} rollouts x {tokens} tokens")
        print(f"analysis     {sum(analysing):6.1f} s")
        print(f"writing      {time.perf_counter() - began - sum(analysing):6.1f} s")
        print(f"peak memory  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MiB")
        print(f"file         {path.stat().st_size / 2**20:6.1f} MiB")
        use(path)


def analyses(prompts: int, size: int, tokens: int, analysing: list[float]) -> Iterator[Analysis]:
    """Groups of rollouts of the same length: real ones of several prompts in a row, with their tokens' real variety."""
    _, mask, responses, _ = real()
    rows = [row[seen.bool()].tolist() for row, seen in zip(responses, mask, strict=True)]
    generator = np.random.default_rng(0)
    for number in range(prompts):
        following = [itertools.cycle(rows[(number * size + i) % len(rows) :: size]) for i in range(size)]
        ids = [list(itertools.islice(itertools.chain.from_iterable(rollouts), tokens)) for rollouts in following]
        rollouts = [Rollout(bool(i % 2), token_ids=row) for i, row in enumerate(ids)]
        began = time.perf_counter()
        analysis = analyse(Group(f"prompt-{number}", "a prompt", None, rollouts), None, KTAEConfig(), generator)
        analysing.append(time.perf_counter() - began)
        yield analysis


def use(path: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        steps: dict[str, Callable[[], object]] = {
            "load": lambda: page.goto(path.as_uri()),
            "open a prompt": lambda: opened(page, 0),
            "point at a token": lambda: page.locator(".text > span").nth(5).hover(),
            "mark a token": lambda: page.locator(".text > span").nth(5).click(),
            "colour by value": lambda: page.get_by_label("key-token value V").check(),
            "filter by |V|": lambda: page.get_by_label("|V| at least").fill("0.5"),
            "search all prompts": lambda: search(page),
            "open a second prompt": lambda: opened(page, 1),
        }
        print("                       seconds   longest time without a frame, ms")
        for name, step in steps.items():
            report(page, name, step)
        browser.close()


def report(page: Page, name: str, step: Callable[[], object]) -> None:
    page.evaluate(LONGEST_GAP)
    began = time.perf_counter()
    step()
    settle(page)
    elapsed = time.perf_counter() - began
    gap = page.evaluate("window.gap")
    print(f"{name:22} {elapsed:7.2f}  {f'{gap:7.0f}' if gap else '':>7}")


def settle(page: Page) -> None:
    """Waits until two frames are drawn: what was asked for is on the screen."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def opened(page: Page, number: int) -> None:
    page.locator(".group > summary").nth(number).click()
    page.locator(".group").nth(number).locator(".text").first.wait_for()
    page.locator("[aria-busy]").wait_for(state="detached")


def search(page: Page) -> None:
    page.get_by_label("Search").fill("1\u27e9\u27e82")
    page.locator("#shown").get_by_text("found").wait_for()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
