"""Reports of rollouts, and what is asked of them in a browser."""

import functools
from pathlib import Path

import numpy as np
from playwright.sync_api import expect

from ktae import KTAEConfig
from ktae.report.analysis import analyse
from ktae.report.rollouts import Group, Labels, Rollout, Skipped, read

DATA = Path(__file__).parents[1] / "examples" / "data" / "amc23.npz"
CONFIG = KTAEConfig()


def analysed(groups, config=CONFIG, tokenizer=None):
    generator = np.random.default_rng(0)
    return (analyse(group, tokenizer, config, generator) for group in groups)


@functools.cache
def amc():
    """The analyses of the example's four prompts."""
    return list(analysed(read(DATA, Labels(), Skipped())))


def words(*texts, label="words", prompt="a prompt"):
    """A group of these rollouts; the first half is correct."""
    return Group(label, prompt, 7, [Rollout(i < len(texts) / 2, text) for i, text in enumerate(texts)])


def open_group(page, number):
    page.locator(".group > summary").nth(number).click()
    group = page.locator(".group").nth(number)
    expect(group.locator(".rollout")).not_to_have_count(0)
    expect(group.locator("[aria-busy]")).to_have_count(0)


def token(page, text):
    return page.locator(".text > span").get_by_text(text, exact=True).first


def numbers(page):
    return page.locator("[data-of]").evaluate_all(
        "cells => Object.fromEntries(cells.map(c => [c.dataset.of, c.innerText]))"
    )
