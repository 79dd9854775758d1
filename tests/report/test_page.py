"""The HTML report in a real browser: what it shows of real rollouts, escaping, and how it is written."""

import dataclasses
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import CONFIG, amc, analysed, numbers, open_group, token, words
from playwright.sync_api import expect

from ktae import KTAEConfig, compute_ktae_advantage
from ktae.report.display import visible
from ktae.report.page import write_page
from ktae.report.rollouts import Group, Rollout

ROOT = Path(__file__).parents[2]
HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\"> </script><script>document.title='owned'</script> <!--",
    "safe \u202egnihton\u202c zero\u200bwidth \x1b[31mred\x00\x07 \x85 \ud800 \u2028 end",
    "{{ 7 * 7 }} ${7 * 7} &lt;b&gt; مرحبا بالعالم 👩‍🚀",
]


def advantages(analysis):
    """Of all tokens of a group, in order, by the estimator that training uses."""
    ids = [torch.tensor(ids) for ids in analysis.tokens.ids]
    responses = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[:, 0] = torch.tensor([float(rollout.correct) for rollout in analysis.group.rollouts])
    return compute_ktae_advantage(rewards, mask, responses, [0] * len(ids), config=CONFIG)[0][mask.bool()]


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


def test_rollouts_are_shown_as_text(visit):
    page = visit(analysed([words(*HOSTILE, HOSTILE[0], label=HOSTILE[0], prompt=HOSTILE[1])]))
    open_group(page, 0)
    shown = [text.evaluate("text => text.textContent") for text in page.locator(".text").all()]
    assert shown == [visible(text, "↵\n") for text in [*HOSTILE, HOSTILE[0]]]
    assert "safe ⟨U+202E⟩gnihton⟨U+202C⟩ zero⟨U+200B⟩width ␛[31mred␀␇ ⟨U+0085⟩ ⟨U+D800⟩ ⟨U+2028⟩ end" in shown[1]
    assert HOSTILE[2] in shown[2]
    assert page.locator(".label bdi").last.inner_text() == HOSTILE[0]
    assert page.locator("img").count() == 0
    assert page.title() == "Key tokens of 1 prompts"
    assert token(page, " مرحبا").evaluate("span => getComputedStyle(span).unicodeBidi") == "isolate"


def test_the_policy_forbids_the_network_and_foreign_scripts(browser, tmp_path):
    write_page(analysed([words("a", "b")]), tmp_path / "report.html", CONFIG, list)
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
    assert rows[0] == "\tobserved\tpermuted outcomes"
    counts = ["prompts\t4\t", "mixed: with both outcomes\t4\t", "rollouts, correct\t64, 35\t", "tokens\t15,861\t"]
    assert rows[1:5] == counts
    observed = [(analysis.table.key_token_value.numpy(), analysis.occurrences) for analysis in amc()]
    chance = [(analysis.chance, analysis.chance_occurrences) for analysis in amc()]
    share, by_chance = (sum(n[np.abs(v) > 0.9].sum() for v, n in table) / 158.61 for table in (observed, chance))
    assert rows[7] == f"saturated tokens of mixed groups\t{share:.1f} %\t{by_chance / 20:.1f} %"
    assert rows[5] == "mean length, correct\t225\t238"
    expect(overview.locator("svg")).to_have_count(3)
    expect(report.locator("#notes")).to_have_text(
        re.compile(r"^Preset published, weights of .* 1\.0, 1\.0 and\s1\.0, scale 1", re.DOTALL)
    )
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


def test_a_step_that_is_text_and_a_note_are_shown_as_text(visit):
    group = words("a", "b")
    page = visit(analysed([dataclasses.replace(group, step="3\u202e<b>")]), notes=["2 lines skipped: \x1b<i>"])
    assert page.locator(".label").inner_text() == "step 3⟨U+202E⟩<b> · words"
    assert page.locator("#notes").inner_text().startswith("2 lines skipped: ␛<i> Preset")


def test_the_advantages_of_training_are_shown_where_the_file_has_them(visit):
    rollouts = [
        Rollout(True, token_ids=[5, 7], advantages=[3.5, -2.0]),
        Rollout(False, token_ids=[7], advantages=[0.25]),
    ]
    page = visit(analysed([Group("g", "", None, rollouts)]))
    open_group(page, 0)
    for number, (advantage, level) in enumerate([("+3.5", "4"), ("\u22122", "-4"), ("+0.25", "1")]):
        token = page.locator(".text > span").nth(number)
        token.hover()
        assert numbers(page)["advantage"] == advantage
        assert token.get_attribute("data-level") == level
    # V is 1 and 0: what is beyond it is 2.5 and -2 in the first rollout.
    assert "Ai = +0.25" in page.locator(".rollout h3").first.inner_text()


def test_the_paper_presets_p_is_called_what_it_is(visit):
    config = KTAEConfig(preset="paper")
    page = visit(analysed([words("a b", "c b")], config), config)
    open_group(page, 0)
    token(page, "a").hover()
    assert "p of the table = 0.5" in page.locator("#sentence").inner_text()
    text = page.locator("body").text_content()
    assert "Fisher p" not in text
    assert "p = 0.05" not in text
    assert "Effect size against p of the table" in text


def test_every_byte_of_a_character_is_a_token_that_can_be_pointed_at(visit, byte_level):
    texts = ["a 👩 b", "é 👩 c"]
    page = visit(analysed([words(*texts)], tokenizer=byte_level))
    open_group(page, 0)
    assert page.locator(".text").evaluate_all("texts => texts.map(text => text.textContent)") == texts
    empty = page.locator(".text > span:empty")
    expect(empty).to_have_count(7)  # 3 of each 👩, 1 of é
    empty.first.click()
    expect(page.locator(".marked")).to_have_count(2)
    assert page.locator("#sentence").inner_text().startswith("The rest of the character: key-token value 0")
    page.get_by_label("Search").fill("👩 b")
    expect(page.locator(".found")).to_have_count(len(byte_level.encode("👩 b").ids))


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
        write_page(broken(), path, CONFIG, list)
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

    write_page(watched(), tmp_path / "report.html", CONFIG, list)
    assert most <= 2  # the one just written, until the next takes its name
    assert (tmp_path / "report.html").read_text().count('class="group"') == 6
