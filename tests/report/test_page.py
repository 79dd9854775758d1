"""The HTML report in a real browser: what it shows of real rollouts, what it does with the mouse and keys, escaping."""

import dataclasses
import functools
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import expect, sync_playwright

from ktae import KTAEConfig, compute_ktae_advantage
from ktae.report.analysis import analyse
from ktae.report.page import visible, write_page
from ktae.report.rollouts import Group, Labels, Rollout, Skipped, read

ROOT = Path(__file__).parents[2]
DATA = ROOT / "examples" / "data" / "amc23.npz"
CONFIG = KTAEConfig()
HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\"> </script><script>document.title='owned'</script> <!--",
    "safe \u202egnihton\u202c zero\u200bwidth \x1b[31mred\x00\x07 \x85 \ud800 \u2028 end",
    "{{ 7 * 7 }} ${7 * 7} &lt;b&gt; مرحبا بالعالم 👩‍🚀",
]


def analysed(groups):
    generator = np.random.default_rng(0)
    return (analyse(group, None, CONFIG, generator) for group in groups)


@functools.cache
def amc():
    """The analyses of the example's four prompts, with the texts of its tokens."""
    with np.load(DATA) as data:
        text = dict(zip(data["token_id"].tolist(), data["token_text"].tolist(), strict=True))

    def named(tokens):
        return tokens._replace(texts=[[text[i] for i in ids] for ids in tokens.ids])

    analyses = analysed(read(DATA, Labels(), Skipped()))
    return [dataclasses.replace(analysis, tokens=named(analysis.tokens)) for analysis in analyses]


def words(*texts, label="words", prompt="a prompt"):
    """A group of these rollouts; the first half is correct."""
    return Group(label, prompt, 7, [Rollout(i < len(texts) / 2, text) for i, text in enumerate(texts)])


def advantages(analysis):
    """Of all tokens of a group, in order, by the estimator that training uses."""
    ids = [torch.tensor(ids) for ids in analysis.tokens.ids]
    responses = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[:, 0] = torch.tensor([float(rollout.correct) for rollout in analysis.group.rollouts])
    return compute_ktae_advantage(rewards, mask, responses, [0] * len(ids), config=CONFIG)[0][mask.bool()]


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

    def visit(analyses):
        write_page(analyses, path, CONFIG, "words")
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


def levels(page):
    return page.locator(".text > span").evaluate_all("spans => spans.map(span => Number(span.dataset.level))")


def expected_levels(values, limit):
    """Four steps of each sign; values on the border of two, as far as the file rounds them, are NaN."""
    size = 4 * values.abs() / limit
    step = values.sign() * size.ceil().clamp(max=4)
    return torch.where((size - size.round()).abs() < 2e-3, torch.where(size < 1e-9, 0.0, torch.nan), step)


def assert_levels(page, values, limit):
    shown, expected = torch.tensor(levels(page)).double(), expected_levels(values, limit)
    known = ~expected.isnan()
    assert known.double().mean() > 0.9
    torch.testing.assert_close(shown[known], expected[known], rtol=0, atol=0)


def test_every_token_has_the_colour_of_its_advantage_in_training(report):
    assert_levels(report, advantages(amc()[0]), 2 * CONFIG.scale)


def test_colour_by_key_token_value(report):
    report.get_by_label("key-token value V").check()
    analysis = amc()[0]
    value = dict(zip(analysis.table.token_id.tolist(), analysis.table.key_token_value.tolist(), strict=True))
    values = torch.tensor([value[i] for ids in analysis.tokens.ids for i in ids], dtype=torch.float64)
    assert_levels(report, values, CONFIG.scale)


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
    assert "in 1 of 9 correct and 5 of 7 incorrect rollouts, 6 times in all; p = 0.035" in sentence


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
    expect(report.locator("#shown")).to_have_text("0 of 4 prompts, found 0 times")
    expect(report.locator(".found")).to_have_count(0)
    report.get_by_label("Search").fill("")
    expect(report.locator("#shown")).to_have_text("4 of 4 prompts")


def test_rollouts_are_shown_as_text(visit):
    page = visit(analysed([words(*HOSTILE, HOSTILE[0], label=HOSTILE[0], prompt=HOSTILE[1])]))
    open_group(page, 0)
    shown = [text.evaluate("text => text.textContent") for text in page.locator(".text").all()]
    assert shown == [visible(text) for text in [*HOSTILE, HOSTILE[0]]]
    assert "safe ⟨U+202E⟩gnihton⟨U+202C⟩ zero⟨U+200B⟩width ␛[31mred␀␇ ⟨U+0085⟩ ⟨U+D800⟩ ⟨U+2028⟩ end" in shown[1]
    assert HOSTILE[2] in shown[2]
    assert page.locator(".label bdi").inner_text() == HOSTILE[0]
    assert page.locator("img").count() == 0
    assert page.title() == "Key tokens of 1 prompts"
    assert token(page, " مرحبا").evaluate("span => getComputedStyle(span).unicodeBidi") == "isolate"


def test_the_policy_forbids_the_network_and_foreign_scripts(browser, tmp_path):
    write_page(analysed([words("a", "b")]), tmp_path / "report.html", CONFIG, "words")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    blocked = page.evaluate(
        """async () => {
        const blocked = [];
        addEventListener('securitypolicyviolation', event => blocked.push(event.effectiveDirective));
        await fetch('http://127.0.0.1:9/').catch(() => 0);
        document.body.insertAdjacentHTML('beforeend', '<img src="http://127.0.0.1:9/" onerror="document.title=1">');
        document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title=2'}));
        await new Promise(done => setTimeout(done, 200));
        return blocked }"""
    )
    assert {"connect-src", "img-src", "script-src-attr", "script-src-elem"} == set(blocked)
    assert page.title() == "Key tokens of 1 prompts"
    page.close()


def test_light_and_dark(report):
    def lightness():
        return report.evaluate("getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/)[0]")

    assert int(lightness()) > 200
    report.emulate_media(color_scheme="dark")
    assert int(lightness()) < 50
    report.get_by_label("Theme").select_option("light")
    assert int(lightness()) > 200
    report.emulate_media(color_scheme="light")
    report.get_by_label("Theme").select_option("dark")
    assert int(lightness()) < 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(report, scheme):
    report.emulate_media(color_scheme=scheme)
    colours = report.locator(".legend [data-level]").evaluate_all(
        "spans => spans.map(s => getComputedStyle(s)).map(s => [s.color, s.backgroundColor, s.borderBottomStyle])"
    )
    assert len(colours) == 9
    for ink, paper, _ in colours[:4] + colours[5:]:
        assert contrast(ink, paper) >= 4.5  # WCAG 2, level AA
    assert [style for *_, style in colours] == ["dashed"] * 4 + ["solid"] * 5  # the sign is not in the colour alone


def contrast(*colours):
    def luminance(colour):
        channels = np.array([int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def test_overview(report):
    overview = report.locator("#overview")
    rows = overview.locator("tr").all_inner_texts()
    assert rows[:4] == ["prompts\t4", "mixed: with both outcomes\t4", "rollouts, correct\t64, 35", "tokens\t15,861"]
    table = [(analysis.table.key_token_value.numpy(), analysis.occurrences) for analysis in amc()]
    saturated = sum(n[np.abs(v) > 0.9].sum() for v, n in table)
    assert rows[6] == f"saturated tokens of mixed groups\t{100 * saturated / 15861:.1f} %"
    chance = [(analysis.chance, analysis.chance_occurrences) for analysis in amc()]
    saturated = sum(n[np.abs(v) > 0.9].sum() for v, n in chance) / 20
    assert rows[7] == f"… with permuted outcomes\t{100 * saturated / 15861:.1f} %"
    expect(overview.locator("svg")).to_have_count(3)
    assert "permuted outcomes" in overview.locator("svg").first.text_content()


def test_groups_of_one_outcome_one_rollout_and_no_tokens(visit):
    groups = [
        words("x y"),
        Group("same", "", None, [Rollout(False, "u v"), Rollout(False, "u")]),
        words("", " ", "a", ""),
    ]
    page = visit(analysed(groups))
    summaries = page.locator(".group > summary")
    for number in range(3):
        open_group(page, number)
    assert "2 of 2" not in summaries.nth(1).inner_text()
    assert "0 of 2 correct, 3 tokens; one outcome: V = 0" in summaries.nth(1).inner_text()
    assert page.locator(".text").all_text_contents() == ["x y", "u v", "u", "(empty)", " ", "a", "(empty)"]
    token(page, "u").hover()
    assert numbers(page)["V"] == "0"


def test_screenshot(report):
    """build/report.png: an artefact of every run, and, when it has changed for good, docs/report.png."""
    (ROOT / "build").mkdir(exist_ok=True)
    report.set_viewport_size({"width": 1200, "height": 1000})
    token(report, " must").click()
    report.screenshot(path=ROOT / "build" / "report.png")
    assert 20_000 < (ROOT / "build" / "report.png").stat().st_size < 300_000


def test_an_interrupted_report_leaves_the_old_one(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")

    def broken():
        yield from analysed([words("a", "b")])
        raise ValueError("a broken file")

    with pytest.raises(ValueError, match="a broken file"):
        write_page(broken(), path, CONFIG, "words")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_one_group_at_a_time_is_in_memory(tmp_path):
    groups, most = [], 0

    def watched():
        nonlocal most
        for number in range(6):
            (analysis,) = analysed([words("a b", f"c {number}")])
            groups.append(weakref.ref(analysis.group))
            most = max(most, sum(group() is not None for group in groups))
            yield analysis

    write_page(watched(), tmp_path / "report.html", CONFIG, "words")
    assert most <= 2  # the one just written, until the next takes its name
    assert (tmp_path / "report.html").read_text().count('class="group"') == 6
