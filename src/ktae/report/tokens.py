"""Text or ids -> tokens: with a tokenizer, else words."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ktae.report.rollouts import FormatError, Group

# Words and single other characters, each with the white space before it, so that the text is the tokens' sum.
WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


class Tokens(NamedTuple):
    """The tokens of a group's rollouts."""

    ids: list[Sequence[int]]  # of each rollout
    texts: list[list[str]]  # what is shown for each of them; joined, the rollouts
    names: dict[int, str]  # what a token of this id is called, in every group


def load_tokenizer(path: str | None) -> Any:
    """The tokenizer in this file, or directory with a tokenizer.json; None for None."""
    if path is None:
        return None
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FormatError(f"--tokenizer {path}: there is no {file.name}. Give a tokenizer.json, or its directory.")
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    except Exception as error:  # the library raises a bare Exception
        raise FormatError(f"--tokenizer {path}: {error}") from error


def unit(group: Group, tokenizer: Any) -> str:
    """What the tokens of the group are, for the report."""
    if any(rollout.token_ids is not None for rollout in group.rollouts):
        if group.token_text:
            return "token ids, with the texts that the file gives"
        return "token ids" if tokenizer is None else "token ids, decoded with the tokenizer"
    return "words" if tokenizer is None else "text, tokenised again with the tokenizer"


def tokens_of(group: Group, tokenizer: Any) -> Tokens:
    """Tokens of a group. Ids of words count from 0 in each group."""
    tokens = Tokens([], [], {})
    vocabulary: dict[str, int] = {}
    decoded = dict(group.token_text)
    for rollout in group.rollouts:
        text = rollout.text or ""
        if rollout.token_ids is not None:
            ids = rollout.token_ids
            decoded |= {i: _decode(i, tokenizer) for i in set(ids) - decoded.keys()}
            texts = [decoded[i] for i in ids]
        elif tokenizer is not None:
            encoding = tokenizer.encode(text, add_special_tokens=False)
            ids, texts = encoding.ids, pieces(text, encoding.offsets)
            decoded |= {i: _decode(i, tokenizer) for i in set(ids) - decoded.keys()}
        else:
            texts = WORDS.findall(text)
            # The white space is shown, but does not tell one word from another.
            ids = [vocabulary.setdefault(word.strip(), len(vocabulary)) for word in texts]
            decoded |= {i: word.strip() or word for i, word in zip(ids, texts, strict=True)}
        tokens.ids.append(ids)
        tokens.texts.append(texts)
        tokens.names.update((i, _name(i, decoded[i])) for i in set(ids) - tokens.names.keys())
    return tokens


def pieces(text: str, offsets: Sequence[tuple[int, int]]) -> list[str]:
    """The text cut at the ends of its tokens: a token also has what is skipped before it, the last one all the rest.

    Tokens that are bytes of one character all have its offsets; the first one gets it, the others are empty.

    Example:
        >>> pieces("a 👩 b ", [(0, 1), (2, 3), (2, 3), (4, 5)])
        ['a', ' 👩', '', ' b ']
    """
    ends = list(itertools.accumulate((end for _, end in offsets), max))[:-1]
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)])] if offsets else []


def _decode(token_id: int, tokenizer: Any) -> str:
    if tokenizer is None or not 0 <= token_id < 1 << 32 or tokenizer.id_to_token(token_id) is None:
        return f"⟨{token_id}⟩"
    token = tokenizer.id_to_token(token_id)
    if token.startswith("▁"):  # decoders drop the space that starts a text; here another token is before it
        return token.replace("▁", " ")
    return tokenizer.decode([token_id], skip_special_tokens=False) or token


def _name(token_id: int, text: str) -> str:
    """Parts of characters have no text to tell them apart."""
    return text if text and "\ufffd" not in text else f"{text}⟨{token_id}⟩"
