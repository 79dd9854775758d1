"""The key tokens of real rollouts: which tokens speak for a correct answer, which against, and why.

python examples/key_tokens.py [prompt number, 0 to 3]
"""

import sys
from pathlib import Path

import numpy as np
import torch

from ktae import key_token_table

DATA = Path(__file__).parent / "data" / "amc23.npz"


def main(number: int = 0, top: int = 6) -> None:
    data = np.load(DATA)
    if not 0 <= number < len(data["prompt_uid"]):
        sys.exit(f"There are prompts 0 to {len(data['prompt_uid']) - 1}.")
    prompt = data["prompt_uid"][number]
    text = dict(zip(data["token_id"].tolist(), data["token_text"].tolist(), strict=True))
    rows = data["uid"] == prompt
    responses = torch.from_numpy(data["responses"][rows])
    mask = torch.from_numpy(data["response_mask"][rows])
    correct = data["correct"][rows]

    table = key_token_table(torch.zeros(mask.shape), mask, responses, data["uid"][rows].tolist(), is_correct=correct)
    print(f"{prompt}: {data['prompt'][number]}")
    print(f"{len(correct)} rollouts, {correct.sum()} correct, {mask.sum()} tokens, {len(table.token_id)} distinct\n")
    print("                        correct      incorrect    Fisher       information effect  direc-  key-token")
    print("token               with without  with without    p-value    gain (bit)  size    tion      value")
    # The value saturates at 1: among the many ties the information gain shows which tokens discriminate best.
    rank = table.key_token_value * table.information_gain
    order = rank.argsort(descending=True, stable=True)
    for row in [*order[:top].tolist(), None, *order[-top:].tolist()]:
        if row is None:
            print("...")
            continue
        print(
            f"{text[int(table.token_id[row])]!r:18} {table.a[row]:5} {table.c[row]:6} {table.b[row]:6} {table.d[row]:6}"
            f"  {table.p_value[row]:10.3g} {table.information_gain[row]:10.3f} {table.effect_size[row]:8.2f}"
            f" {table.direction[row]:9.3g} {table.key_token_value[row]:8.3f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
