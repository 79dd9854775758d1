"""examples/study: tasks, policy, arms and tables of the study of learning, and that it runs."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

STUDY = Path(__file__).resolve().parents[1] / "examples" / "study"
sys.path.insert(0, str(STUDY))
import credit  # noqa: E402
import learn  # noqa: E402
import policy  # noqa: E402
import tables  # noqa: E402
import tasks  # noqa: E402


@pytest.fixture(params=tasks.TASKS)
def task(request):
    return tasks.TASKS[request.param]


def test_solutions_without_mistakes_are_correct(task, monkeypatch):
    monkeypatch.setattr(tasks, "MISTAKEN", 0.0)
    rng = np.random.default_rng(0)
    retracted = 0
    for _ in range(200):
        problem = task.problem(rng)
        solution = task.solution(problem, rng)
        assert set(problem.prompt + solution) <= set(task.vocabulary)
        is_correct, steps = task.check(problem, solution)
        assert is_correct
        assert steps.count(1) == len(problem.steps) + 1 + steps.count(-1)  # each wrong step, and each "no" to it
        retracted += steps.count(-1)
    assert retracted > 20


def test_some_solutions_are_mistaken_but_consistent(task):
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(300):
        problem = task.problem(rng)
        is_correct, steps = task.check(problem, task.solution(problem, rng))
        outcomes.append(is_correct)
        if not is_correct:
            assert -1 in steps
    assert 0.2 < np.mean(outcomes) < 0.8


@pytest.mark.parametrize(
    ("response", "is_correct", "steps"),
    [
        ("f0 11 f1 6 answer 6 <end>", True, [0, 1, 0, 1, 0, 1, 0]),
        ("f0 11 f1 6 answer 6", False, [0, 1, 0, 1, 0, 1]),  # it does not end
        ("f0 12 f1 13 answer 13 <end>", False, [0, -1, 0, 1, 0, 1, 0]),  # 7 x 12 + 11 = 13 is a right step
        ("f0 12 no f0 11 f1 6 answer 6 <end>", True, [0, -1, 1, 0, 1, 0, 1, 0, 1, 0]),
        ("f0 11 no f0 11 f1 6 answer 6 <end>", True, [0, 1, -1, 0, 1, 0, 1, 0, 1, 0]),
        ("no f0 11 answer 11 <end>", False, [0, 0, 1, 0, -1, 0]),  # a step is missing
        ("f0 11 f1 6 f2 42 answer 6 <end>", True, [0, 1, 0, 1, 0, -1, 0, -1, 0]),  # a step too many
        ("answer 6 <end>", True, [0, -1, 0]),
    ],
)
def test_steps_and_answer_are_checked(response, is_correct, steps):
    problem = tasks.Problem(["2", "f0", "f1", "="], 2, [tasks.MAPS["f0"], tasks.MAPS["f1"]])
    assert [int(step.right[number]) for step, number in zip(problem.steps, (2, 11), strict=True)] == [11, 6]
    assert tasks.CHAIN.check(problem, response.split()) == (is_correct, steps)


def test_forgetting_to_carry():
    step = tasks.addition(5)
    assert (step.right[7], step.mistaken[7]) == (12, 2)
    assert (step.right[3], step.mistaken[3]) == (8, 8)
    assert (tasks.addition(-5).right[12], tasks.addition(-5).mistaken[12]) == (7, 7)


def test_sampled_probabilities_are_those_of_the_forward_pass(task):
    """So neither the cache nor dropping the rows that have ended shows."""
    torch.manual_seed(0)
    model = learn.new_policy(task)
    with torch.no_grad():
        model.head.bias[task.vocabulary.index(tasks.END)] += 2.5  # so that many end early
    rng = np.random.default_rng(0)
    problems = [task.problem(rng) for _ in range(40)]
    sampled = learn.rollouts(model, task, problems, torch.Generator().manual_seed(0))
    lengths = sampled.response_mask.sum(1)
    assert lengths.min() < lengths.max() / 3
    prompts = learn.encode(task, [problem.prompt for problem in problems])
    with torch.no_grad():
        expected = learn.log_probs_of(model, prompts, sampled.responses)
    mask = sampled.response_mask == 1
    torch.testing.assert_close(sampled.log_prob[mask], expected[mask], rtol=1e-4, atol=1e-4)
    end = task.vocabulary.index(tasks.END)
    ended = (sampled.responses == end) & mask
    assert ended.sum(1).le(1).all()
    assert (sampled.responses[~mask] == end).all()


def test_samples_follow_the_probabilities():
    torch.manual_seed(0)
    model = policy.Policy(5, 3)
    prompts = torch.zeros(4000, 1, dtype=torch.long)
    sampled = policy.sample(model, prompts, 1, end=4, generator=torch.Generator().manual_seed(1))
    expected = model(prompts[:1])[0, -1].softmax(-1).detach().double().numpy()
    counts = torch.bincount(sampled.responses[:, 0], minlength=5).numpy()
    assert stats.chisquare(counts, 4000 * expected / expected.sum()).pvalue > 0.001


def make_batch(texts, correct, index):
    """A batch of the digits of texts."""
    width = max(map(len, texts))
    responses = torch.tensor([[int(word) for word in text.ljust(width, "0")] for text in texts])
    mask = torch.arange(width) < torch.tensor([len(text) for text in texts])[:, None]
    rewards = torch.zeros(responses.shape)
    rewards[range(len(texts)), [len(text) - 1 for text in texts]] = torch.tensor(correct, dtype=torch.float)
    generator = torch.Generator().manual_seed(0)
    entropy = torch.rand(responses.shape, generator=generator)
    steps = torch.randint(-1, 2, responses.shape, generator=generator).float() * mask
    return credit.Batch(responses, mask.long(), rewards, torch.tensor(index), entropy, steps)


BATCH = make_batch(
    ["123", "1245", "333", "12", "67", "1289", "5", "88", "999", "98"],
    [1, 0, 1, 0, 0, 1, 1, 0, 1, 1],
    [0, 0, 0, 0, 0, 0, 1, 1, 2, 2],
)
MIXED = BATCH.index < 2


@pytest.mark.parametrize("in_context", [False, True])
def test_z_is_standardised_over_all_shuffles_of_the_other_rollouts_outcomes(in_context):
    values = (credit.z_in_context if in_context else credit.z)(BATCH, None)
    correct = (BATCH.rewards.sum(1) > 0).tolist()
    texts = [row[mask == 1].tolist() for row, mask in zip(BATCH.responses, BATCH.response_mask, strict=True)]
    pairs = [list(zip([None, *text], text, strict=False)) for text in texts]
    seen = 0
    for row, text in enumerate(texts):
        for place, word in enumerate(text):
            others = [i for i in range(len(texts)) if BATCH.index[i] == BATCH.index[row] and i != row]
            if in_context:
                before = pairs[row][place][0]
                others = [i for i in others if before in [a for a, _ in pairs[i]]]
                contains = [pairs[row][place] in pairs[i] for i in others]
            else:
                contains = [word in texts[i] for i in others]
            right = [correct[i] for i in others]
            counts = [
                sum(contains[i] for i in chosen) for chosen in itertools.combinations(range(len(right)), sum(right))
            ]
            a = sum(c and r for c, r in zip(contains, right, strict=True))
            z = (a - np.mean(counts)) / np.std(counts) if np.std(counts) > 0 else 0.0
            assert values[row, place].item() == pytest.approx(np.tanh(z / 2), abs=1e-6)
            seen += z != 0
    assert seen > (3 if in_context else 8)


def added(arm):
    """What an arm adds to GRPO's advantage."""
    return credit.ARMS[arm].advantages(BATCH, torch.Generator().manual_seed(0)) - credit.grpo(BATCH)


@pytest.mark.parametrize("arm", [arm for arm in credit.ARMS if arm not in ("GRPO", "DAPO", "highest entropy")])
def test_every_arm_adds_something_but_only_where_both_outcomes_are(arm):
    values = added(arm)
    assert values[MIXED].abs().sum() > 0
    assert values[~MIXED].abs().sum() == 0
    assert values[BATCH.response_mask == 0].abs().sum() == 0


@pytest.mark.parametrize(
    ("arm", "mean"),
    [
        ("offset 0.2", 0.2),
        ("offset 0.5", 0.5),
        ("z, centred", 0),
        ("z, centred, offset 0.5", 0.5),
        ("z in context, centred, offset 0.5", 0.5),
        ("oracle, centred", 0),
        ("oracle, centred, offset 0.5", 0.5),
    ],
)
def test_means_of_the_groups(arm, mean):
    means = credit.mean_of_groups(BATCH, added(arm))
    torch.testing.assert_close(means[MIXED], torch.full_like(means[MIXED], mean))


def test_values_are_shuffled_within_groups():
    values, shuffled = credit.key_token_value(BATCH), added("shuffled V")
    for group in range(2):
        words = (BATCH.index == group)[:, None] & (BATCH.response_mask == 1)
        torch.testing.assert_close(shuffled[words].sort().values, values[words].sort().values)
    assert not torch.allclose(shuffled, values)
    means = credit.mean_of_groups(BATCH, values).expand_as(values)
    torch.testing.assert_close(added("mean of V")[BATCH.response_mask == 1], means[BATCH.response_mask == 1])


def test_highest_entropy_keeps_a_fifth_of_the_words():
    arm = credit.ARMS["highest entropy"].advantages(BATCH, None)
    words = BATCH.response_mask == 1
    kept = BATCH.entropy >= BATCH.entropy[words].quantile(0.8)
    assert kept[words].float().mean() == pytest.approx(0.2, abs=0.05)
    assert torch.equal(arm, credit.grpo(BATCH) * kept)


def test_groups_of_one_outcome_are_dropped_by_dapo():
    assert credit.both_outcomes(BATCH)[:, 0].tolist() == MIXED.tolist()
    assert {name for name, arm in credit.ARMS.items() if arm.drop_one_sided} == {"DAPO", "DAPO, published"}


@pytest.fixture
def short(monkeypatch):
    """Train a policy of responses of up to six words, of which those of one word are right."""
    one_step = tasks.CHAIN._replace(response_length=6)
    monkeypatch.setattr(tasks.Task, "check", lambda _, __, words: (len(words) == 1, [0] * len(words)))

    def train(setting, arm=credit.ARMS["GRPO"]):
        torch.manual_seed(0)
        model = learn.new_policy(one_step)
        with torch.no_grad():
            model.head.bias[one_step.vocabulary.index(tasks.END)] += 3
        return learn.reinforce(model, one_step, arm, setting, 1e-3, seed=0, steps=8)

    return train


def test_reinforcement_raises_what_is_rewarded(short):
    curve = short(learn.Setting())
    assert curve[-1].accuracy > curve[0].accuracy + 0.2
    assert curve[-1].length < curve[0].length
    assert curve[-1].entropy < curve[0].entropy


def test_groups_are_of_the_setting(short):
    seen = []

    def advantages(batch, _):
        seen.append(batch.index.tolist())
        return torch.zeros_like(batch.rewards)

    short(learn.Setting(prompts=3, rollouts=5), credit.Arm(advantages))
    assert seen == [[0] * 5 + [1] * 5 + [2] * 5] * 8


def test_terms_of_the_setting(short):
    plain, entropy, kl = (
        short(setting)[-1]
        for setting in (learn.Setting(), learn.Setting(entropy_coefficient=1.0), learn.Setting(kl_coefficient=10.0))
    )
    assert entropy.entropy > plain.entropy + 0.2
    assert kl.accuracy < plain.accuracy - 0.2


def test_holm():
    """The example of Holm's paper's procedure: p times what is left, never falling."""
    assert tables.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert tables.holm([0.9, 0.8]) == [1, 1]


def test_differences_are_paired():
    a, b = np.array([1.0, 2.0, 4.0]), np.array([0.9, 1.7, 3.8])
    found = tables.difference(a, b)
    assert found.mean == pytest.approx(0.2)
    assert found.better == 3
    low, high = stats.t.interval(0.95, 2, loc=0.2, scale=0.1 / np.sqrt(3))
    assert found.half_width == pytest.approx((high - low) / 2)
    assert found.p == pytest.approx(2 * stats.t.sf(0.2 / (0.1 / np.sqrt(3)), 2))


def test_the_page_has_the_tables_of_the_runs():
    command = [sys.executable, str(STUDY / "tables.py")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    page = (STUDY.parents[1] / "docs" / "results.md").read_text()
    tables = printed.strip().split("\n\n")
    assert len(tables) == 15  # chain 8 with its head, story 7
    for table in tables:
        assert table in page


def run(program, *arguments):
    command = [sys.executable, str(STUDY / program), "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def test_it_runs_goes_on_and_makes_tables_and_plots(tmp_path):
    results = tmp_path / "results"
    assert "6/6 story, published" in run("study.py", "--results", str(results))
    (left_out,) = results.glob("chain/published-*-1.csv")
    before = left_out.read_text()
    left_out.unlink()
    again = run("study.py", "--results", str(results))
    rate = left_out.name.split("-", 1)[1][:-6]
    assert again.splitlines() == [f"1/1 chain, published, {rate}, seed 1, groups of 16"]
    assert left_out.read_text() == before
    printed = run("tables.py", "--results", str(results), "--figures", str(tmp_path / "figures"))
    assert printed.count("| published | ") == 6  # three tables of two tasks
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{task}_{what}.svg" for task in tasks.TASKS for what in ("curves", "differences")}
