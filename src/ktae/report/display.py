"""What page, terminal and figures share: the names of the statistics, colours, and text that steers no reader."""

import unicodedata

# What is shown of a token's row -> the field of the table.
STATISTICS = {
    "a": "a",
    "b": "b",
    "c": "c",
    "d": "d",
    "p": "p_value",
    "F": "fisher_score",
    "IG": "information_gain",
    "h": "effect_size",
    "D": "direction",
    "V": "key_token_value",
}
P_NAMES = {"published": "Fisher p", "paper": "p of the table", "calibrated": "Fisher p"}  # of each preset

# Okabe and Ito's colours, which colour-blind people tell apart; seen on black and on white.
PALETTE = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
NEGATIVE, POSITIVE = PALETTE[:2]
NEUTRAL = "#909090"


def visible(text: str, line_break: str = "↵") -> str:
    """Text in which control characters and other invisible ones, which may reorder the rest, are seen.

    Example:
        >>> visible("a\\x1b[0m\\u202eb\\n")
        'a␛[0m⟨U+202E⟩b↵'
    """
    return text if text.isprintable() else "".join(line_break if c == "\n" else _visible(c) for c in text)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    joiner = character in "\u200c\u200d"  # part of the spelling of words and emoji
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"⟨U+{code:04X}⟩" if hidden and not joiner else character
