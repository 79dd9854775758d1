"""The HTML report in a real browser: what it does with the mouse, keys, filters and search."""

import string

import pytest
from pages import amc, analysed, numbers, open_group, token, words
from playwright.sync_api import expect

from ktae.report.rollouts import Group, Rollout


@pytest.mark.parametrize("how", ["hover", "focus"])
def test_a_token_under_pointer_or_focus_shows_its_table(report, how):
    must = token(report, " must")
    if how == "hover":
        must.hover()
    else:
        must.locator("xpath=..").locator("span").first.focus()
        while report.evaluate("document.activeElement.textContent") != " must":
            report.keyboard.press("ArrowRight")
    shown = numbers(report)
    # The row of " must" in README.md.
    assert {name: shown[name] for name in "abcd"} == {"a": "1", "b": "5", "c": "8", "d": "2"}
    for name, value in {"p": 0.035, "IG": 0.294, "h": -0.667, "D": -8.71, "V": -0.99}.items():
        assert float(shown[name].replace("\N{MINUS SIGN}", "-")) == value
    sentence = report.get_by_role("status").filter(has_text="must").inner_text()
    assert "in 1 of 9 correct and 5 of 7 incorrect rollouts, 6 times in all; Fisher p = 0.035" in sentence


@pytest.mark.parametrize("how", ["click", "Enter", "Space"])
def test_click_or_key_marks_all_occurrences_and_escape_unmarks(report, how):
    must, marked = token(report, " must"), report.locator(".marked")
    must.click()
    if how != "click":
        must.click()  # a second time unmarks
        expect(marked).to_have_count(0)
        report.keyboard.press(how)
    assert marked.all_text_contents() == [" must"] * 6
    expect(report.locator(".rollout", has=marked)).to_have_count(6)
    expect(must).to_have_attribute("aria-pressed", "true")
    report.keyboard.press("Escape")
    expect(marked).to_have_count(0)
    expect(must).to_have_attribute("aria-pressed", "false")


def test_keys_move_between_tokens_lines_and_rollouts(report):
    def focused():
        return report.evaluate(
            """() => { const s = document.activeElement, all = [...s.parentElement.children];
            return [[...document.querySelectorAll('.text')].indexOf(s.parentElement), all.indexOf(s), s.offsetTop] }"""
        )

    stops = report.locator(".text [tabindex='0']")
    expect(stops).to_have_count(16)  # one a rollout
    stops.first.focus()
    length = len(amc()[0].tokens.ids[0])
    for key, position in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", length - 1), ("Home", 0)):
        report.keyboard.press(key)
        assert focused()[:2] == [0, position]
    top = focused()[2]
    report.keyboard.press("ArrowDown")
    assert focused()[2] > top
    report.keyboard.press("ArrowUp")
    assert focused()[2] == top
    report.keyboard.press("Tab")
    assert focused()[:2] == [1, 0]
    expect(stops).to_have_count(16)


def test_a_group_has_elements_only_while_it_is_open(visit):
    page = visit(amc())
    tokens = page.locator(".text > span")
    expect(tokens).to_have_count(0)
    open_group(page, 1)
    expect(page.get_by_role("group", name="Rollout 3, ")).to_have_count(1)
    assert tokens.count() == sum(map(len, amc()[1].tokens.ids))
    page.locator(".group > summary").nth(1).click()
    expect(tokens).to_have_count(0)


def test_filters(report):
    shown = report.locator("#shown")
    report.get_by_label("Prompt").fill("PERFECT SQUARES")
    expect(shown).to_have_text("1 of 4 prompts")
    expect(report.locator(".group:visible")).to_have_count(1)
    report.get_by_label("Outcome").select_option("incorrect")
    assert report.locator(".rollout:visible h3").all_text_contents()[0].startswith("✗ Rollout 4, incorrect")
    expect(report.locator(".rollout:visible")).to_have_count(7)
    report.get_by_label("Outcome").select_option("all")
    expect(report.locator(".rollout:visible")).to_have_count(16)
    report.get_by_label("|V| at least").fill("0.995")
    coloured = set(report.locator(".text > [data-level]:not([data-level='0'])").all_text_contents())
    table = amc()[0].table
    assert "8" in coloured  # V = 0.999
    assert " must" not in coloured  # V = -0.99
    assert len(coloured) == int((table.key_token_value.abs() >= 0.995).sum())


def test_search_finds_text_across_tokens_in_closed_groups_too(report):
    texts = ["".join(tokens).lower() for analysis in amc() for tokens in analysis.tokens.texts]
    assert sum("perfect square" in text for text in texts) > 5
    report.get_by_label("Search").fill("Perfect Squares")
    expect(report.locator("#shown")).to_contain_text("found")
    found = [text.lower() for text in report.locator(".text > .found").all_text_contents()]
    assert set(found) == {" perfect", " squares"}
    assert found.count(" perfect") == sum(text.count("perfect squares") for text in texts[:16])
    report.get_by_label("Search").fill("(no such text*")
    expect(report.locator("#shown")).to_have_text("0 of 4 prompts, found: 0 tokens")
    expect(report.locator(".found")).to_have_count(0)
    report.get_by_label("Search").fill("")
    expect(report.locator("#shown")).to_have_text("4 of 4 prompts")


def test_search_takes_every_punctuation_mark(visit):
    page = visit(analysed([words(f"x{mark}1", "y") for mark in string.punctuation]))
    for mark in string.punctuation:
        page.get_by_label("Search").fill(f"X{mark}1")
        expect(page.locator("#shown")).to_have_text(f"1 of 32 prompts, found: {1 if mark == '_' else 3} tokens")


def test_all_filters_hold_together(visit):
    groups = [
        words("yes x x", "so", "no x", "so", label="mixed"),
        Group("right", "", None, [Rollout(True, "x")]),
        Group("wrong", "", None, [Rollout(False, "x"), Rollout(False, "so")]),
    ]
    page = visit(analysed(groups))
    shown, visible = page.locator("#shown"), page.locator(".group:visible")
    page.get_by_label("Outcome").select_option("incorrect")
    expect(shown).to_have_text("2 of 3 prompts")
    page.get_by_label("Search").fill("x")
    expect(shown).to_have_text("2 of 3 prompts, found: 2 tokens")
    assert page.locator(".count:visible").all_inner_texts() == ["found: 1 tokens"] * 2
    page.get_by_label("Search").fill("yes")  # only in a correct rollout
    expect(shown).to_have_text("0 of 3 prompts, found: 0 tokens")
    page.get_by_label("Outcome").select_option("correct")
    expect(shown).to_have_text("1 of 3 prompts, found: 1 tokens")
    page.get_by_label("Search").fill("x")
    expect(shown).to_have_text("2 of 3 prompts, found: 3 tokens")
    page.get_by_label("|V| at least").fill("0.1")
    expect(visible.locator(".label")).to_have_text(["step 7 · mixed"])
    page.get_by_label("Prompt").fill("right")
    expect(shown).to_have_text("0 of 3 prompts, found: 0 tokens")


def test_the_value_filter_looks_at_the_chosen_outcome(visit):
    page = visit(analysed([words("yes so", "yes so", "so", "so")]))
    page.get_by_label("|V| at least").fill("0.5")
    for outcome, prompts in (("correct", 1), ("incorrect", 0)):
        page.get_by_label("Outcome").select_option(outcome)
        expect(page.locator("#shown")).to_have_text(f"{prompts} of 1 prompts")
