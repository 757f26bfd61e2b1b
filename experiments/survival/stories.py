"""Children's stories from a small grammar: a third built-in corpus, unlike prose and unlike code.

They stand in for TinyStories where no file of it is at hand: short words, few of them, the same plot again and
again. Deterministic in the seed.
"""

from __future__ import annotations

import random

_NAMES = "Mia Tom Lily Ben Anna Sam Lucy Max Ella Tim Rosa Jack Nora Finn Zoe Leo Sue Bob Amy Dan".split()
_ANIMALS = "cat dog fox bird duck bear mouse frog horse rabbit squirrel turtle owl goat lamb".split()
_MOODS = "little happy kind brave shy curious sleepy clever gentle silly lonely proud quiet".split()
_PLACES = "park garden forest river beach farm kitchen school hill lake market playground barn".split()
_THINGS = "ball kite book hat boat apple cake drum doll flower shell box lamp ribbon bell".split()
_COLORS = "red blue green yellow white big small shiny old new round soft".split()
_FEELINGS = "sad scared worried tired angry sorry hungry cold".split()
_GLAD = "happy glad proud thankful excited calm warm".split()

_BEGINNINGS = (
    "Once upon a time there was a {mood} {animal} named {name}.",
    "One day a {mood} {animal} called {name} went to the {place}.",
    "There once lived a {mood} {animal} near the {place}. The {animal}'s name was {name}.",
    "{name} was a {mood} {animal} who loved to play in the {place}.",
)
_MIDDLES = (
    "{name} saw a {color} {thing} in the {place}. It was very {color}.",
    '"Can I have the {thing}?" asked {friend}. "Yes, but be careful," said {name}.',
    "{name} and {friend} played with the {thing} all day.",
    "Then the {thing} was gone. {name} felt {feeling}.",
    '"Do not be {feeling}," said {friend}. "I will help you find the {thing}."',
    "They looked under the tree, and they looked behind the {color} house.",
    "{friend} wanted the {thing} too, but {name} did not want to share.",
    "It started to rain, so they ran back to the {place}.",
    '{name} said, "I like your {color} {thing}." {friend} smiled.',
    "At the {place} they met a {mood} {other}, who had a {color} {thing}.",
)
_ENDINGS = (
    "In the end they found the {thing}, and {name} was very {glad}.",
    "{name} hugged {friend}, and they were both {glad}. They went home together.",
    "From that day on {name} and {friend} shared everything and were the best of friends.",
    "{name} learned that it is good to share. The end.",
)


def story(chance: random.Random) -> str:
    """Write one story of some hundred words."""
    fixed = {
        "name": chance.choice(_NAMES),
        "friend": chance.choice(_NAMES),
        "animal": chance.choice(_ANIMALS),
        "thing": chance.choice(_THINGS),
    }

    def tell(sentence: str) -> str:
        changing = {
            "mood": chance.choice(_MOODS),
            "place": chance.choice(_PLACES),
            "color": chance.choice(_COLORS),
            "feeling": chance.choice(_FEELINGS),
            "glad": chance.choice(_GLAD),
            "other": chance.choice(_ANIMALS),
        }
        return sentence.format(**fixed, **changing)

    middles = chance.choices(_MIDDLES, k=chance.randint(3, 8))
    return " ".join(tell(part) for part in (chance.choice(_BEGINNINGS), *middles, chance.choice(_ENDINGS)))


def stories(count: int) -> str:
    """Write so many stories, with ``<|endoftext|>`` between them, as TinyStories has it."""
    chance = random.Random(0)
    return "\n<|endoftext|>\n".join(story(chance) for _ in range(count)) + "\n"
