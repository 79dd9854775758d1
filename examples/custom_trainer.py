"""KTAE in a trainer of your own: REINFORCE on a toy language model, in plain torch.

The model is to write the number 1 somewhere in six digits, and never a 9. `python examples/custom_trainer.py` trains it
twice, with the rollout-level advantage alone and with key-token values, and prints the share of correct rollouts.
"""

import torch
from torch import nn

from ktae import KTAEConfig, compute_ktae_advantage

PROMPTS, ROLLOUTS, LENGTH, VOCABULARY, UPDATES = 4, 8, 6, 10, 60


class LanguageModel(nn.Module):
    """Prompt and the tokens so far -> logits of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Embedding(PROMPTS, 32)
        self.token = nn.Embedding(VOCABULARY, 32)
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([self.start(prompt)[:, None], self.token(tokens)], dim=1)  # [B, 1 + T, 32]
        return self.head(self.memory(inputs)[0])


@torch.no_grad()
def generate(model: LanguageModel, prompt: torch.Tensor) -> torch.Tensor:
    tokens = torch.zeros(len(prompt), 0, dtype=torch.long)
    for _ in range(LENGTH):
        probability = model(prompt, tokens)[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(probability, 1)], dim=1)
    return tokens


def train(config: KTAEConfig) -> list[float]:
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    prompt = torch.arange(PROMPTS).repeat_interleave(ROLLOUTS)  # [B]
    accuracy = []
    for _ in range(UPDATES):
        responses = generate(model, prompt)  # [B, T]
        correct = (responses == 1).any(1) & ~(responses == 9).any(1)
        rewards = torch.zeros(responses.shape)
        rewards[:, -1] = correct.float()

        mask = torch.ones_like(responses)
        advantages, _ = compute_ktae_advantage(rewards, mask, responses, prompt, config=config)

        log_prob = model(prompt, responses[:, :-1]).log_softmax(-1)
        log_prob = log_prob.gather(2, responses[:, :, None]).squeeze(2)  # [B, T]
        loss = -(advantages * log_prob * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy.append(correct.float().mean().item())
    return accuracy


if __name__ == "__main__":
    # One seed: this shows the wiring, it does not compare the two.
    for name, config in {"GRPO": KTAEConfig(scale=0), "KTAE": KTAEConfig()}.items():
        accuracy = train(config)
        shares = [sum(accuracy[i : i + 10]) / 10 for i in range(0, UPDATES, 10)]
        print(f"{name}: correct, in tens of updates:", *(f"{share:.2f}" for share in shares))
