"""A browser that opens reports."""

import os
import shutil

import pytest
from pages import CONFIG, amc, open_group
from playwright.sync_api import sync_playwright
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ktae.report.page import write_page


@pytest.fixture(scope="module")
def browser():
    executable = shutil.which("chromium")
    if executable is None:
        reason = "no chromium: the report is not tested in a browser. Debian: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens the report of analyses; in the end nothing but the file was requested and no error was logged."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    path = tmp_path / "report.html"

    def visit(analyses, config=CONFIG, notes=()):
        write_page(analyses, path, config, lambda: notes)
        page.goto(path.as_uri())
        return page

    yield visit
    assert requests == [path.as_uri()]
    assert errors == []
    page.close()


@pytest.fixture
def report(visit):
    """The page of the AMC rollouts, its first prompt open."""
    page = visit(amc())
    open_group(page, 0)
    return page


@pytest.fixture(scope="session")
def byte_level():
    """A byte-level BPE as that of Qwen and Llama-3, which knows hardly any word: most characters are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["so the answer is the sum of the other numbers"], trainer)
    return tokenizer
