"""One paragraph more on each command's result, and the section of the docs that has the rest."""

from __future__ import annotations

from typing import NamedTuple


class Explained(NamedTuple):
    """A paragraph, and where it goes on: a page below ``docs/`` and one of its headings."""

    text: str
    page: str
    section: str


_TRAINING = (
    "All seeds of a run see the same data in the same order, so that what differs between them comes from their "
    "births. The loss is the mean negative log-likelihood of the next token in nats; e to it is the perplexity. "
    "Checkpoints hold weights and optimiser, and a run that is killed goes on from the latest whole one."
)
EXPLAINED: dict[str, Explained] = {
    "models": Explained(
        "Widths, depths and initialisation decide what a newborn model prefers: a preset with -nano has the papers' "
        "sizes, one with -tiny is small enough for seconds. The scheme gpt2-scaled shrinks what writes to the residual "
        "stream, which a narrow model pays for with a weaker preference than under normal-0.02.",
        "measurements.md",
        "By architecture, size and length",
    ),
    "probe preference": Explained(
        "The prediction is the token with the largest logit after the last position, and the top-1 fraction is the "
        "part of the inputs that get the most frequent one. Its p-value is a binomial tail for N inputs and a "
        "probability of 1/V, times V for having looked at every token (Bonferroni). Embeddings and head are the same "
        "for all seeds unless --no-fix-embeddings is given, so that the seeds differ in their blocks alone.",
        "glossary.md",
        "Preference at birth",
    ),
    "probe contraction": Explained(
        "States at the last position of different inputs are compared after every block; their mean cosine over all "
        "pairs grows, because what attention and MLP add has a part that is the same for every input. The p-value is "
        "Rayleigh's: how long the mean of N independent directions would be. For random tokens, pairs that end in the "
        "same token are left out, since they agree from the beginning.",
        "glossary.md",
        "Contraction",
    ),
    "predict": Explained(
        "Theory follows variances and covariances of the states from sublayer to sublayer in float64, with corrections "
        "for the width, and knows the architecture but no seed. The cosine comes with a 99% interval over seeds, the "
        "top-1 fraction with the band that holds 80% of seeds whose embeddings are drawn anew. Seeds that share one "
        "table see that table's accidents all at once, so that more or fewer of them may lie inside.",
        "theory.md",
        "What is predicted",
    ),
    "seedprint": Explained(
        "A birth leaves a seed's coordinates in the weights, and training moves them little. The tests permute labels "
        "that a birth draws independently, and ask how often an unrelated model would agree as much: that is exact, "
        "and small p are bounded by proof rather than by a normal tail. A verdict is about a shared birth, not about "
        'intent, and "unrelated" means that nothing was found.',
        "seedprint.md",
        "Tests in the weights",
    ),
    "whichseed": Explained(
        "A few hundred numbers of each seed's birth are drawn and correlated with the same places of the weights; what "
        "stands out is decided on many more numbers, and confirmed by the exact test of all weights. Probabilities are "
        "corrected for all 2³² seeds, however few were searched. Seeds are those of this package.",
        "seedprint.md",
        "Speed",
    ),
    "audit": Explained(
        "Copies are told by digests, gaps by the steps that names claim, breaks by distances along a trajectory that "
        "no training makes, and parentage by the exact test in the weights, with Holm's correction over all pairs. "
        "What is listed as information is no defect. Without weights, from a listing alone, copies and gaps are what "
        "can be seen.",
        "descendants.md",
        "Auditing a folder",
    ),
    "fingerprint": Explained(
        "A fingerprint is the matrix of last-position outputs on N inputs, with the digests of inputs and weights, so "
        "that two of them are compared only where they answer the same questions. It reveals no weights. What it shows "
        "is mostly the embedding table: blocks leave little of their birth in the outputs.",
        "survival.md",
        "In the outputs: the embedding",
    ),
    "digest": Explained(
        "The digest is a hash over every tensor's path and bytes in one layout, the same whatever the file format. "
        "Relabelling coordinates or hidden units changes it, which is what makes it a commitment: the labels of the "
        "base are then fixed before anybody knows the suspect.",
        "seedprint.md",
        "Tests in the weights",
    ),
    "derive": Explained(
        "Changes that leave the function alone are what a copyist can do for free, and each is checked by logits "
        "before it is written. Those that change it stand for what happens to models in the world: noise, pruning, "
        "merging. A descendant of known origin tells which test survives which change.",
        "descendants.md",
        "Which test to trust after which change",
    ),
    "pretrain": Explained(_TRAINING, "pretraining.md", "Seeds at once"),
    "adapt": Explained(
        _TRAINING
        + " An adapter leaves the model's own weights as they are: LoRA adds a low-rank product that can be merged, "
        "a prefix adds keys and values that cannot.",
        "descendants.md",
        "Fine-tuning and adapters",
    ),
    "runs": Explained(
        "A run is a folder with its configuration, metrics.jsonl and checkpoints. It is finished when the checkpoint "
        "of its last planned step is there; a run that is not goes on when its command is given again, from its latest "
        "whole checkpoint.",
        "pretraining.md",
        "Killed and resumed",
    ),
    "plot": Explained(
        "The loss is that of each step's own batch: it is noisy, and the noise is common to all seeds because they see "
        "the same batch. The held-out loss, where there is one, is drawn as points.",
        "pretraining.md",
        "Speed of training",
    ),
    "export": Explained(
        "The directory has config.json, safetensors and, where the run has one, the tokenizer. Weights keep their "
        "number format; norms, biases and names follow the family. LoRA is merged in unless --peft is given.",
        "pretraining.md",
        "Evaluation against transformers",
    ),
    "evaluate": Explained(
        "The text is tokenised whole and cut into sequences of one context, each predicted from its own beginning: a "
        "longer context lowers the perplexity, so that only equal contexts compare. Bits per byte divide by the text's "
        "UTF-8 bytes and compare models with different tokenizers. A model evaluated on its own training text shows "
        "memory.",
        "pretraining.md",
        "Evaluation against transformers",
    ),
    "generate": Explained(
        "Each token is the one with the largest logit, with keys and values kept from token to token. Greedy text "
        "repeats itself sooner than drawn text does; it is meant to hear whether weights were loaded as they should be."
        "",
        "glossary.md",
        "Language modelling",
    ),
    "parity": Explained(
        "The same random tokens go through both implementations in float32, which round in another order. What "
        "rounding does is small beside the logits' standard deviation and moves next to no prediction; a wrong norm, "
        "rotary base or attention mask moves many.",
        "pretraining.md",
        "Evaluation against transformers",
    ),
    "sinks": Explained(
        "A head's score is the attention that the position gets, averaged over rows; above epsilon the head is a sink. "
        "DomRatio is the largest channel of a state over the mean channel, and the effective rank says in how many "
        "directions states vary: a sink goes with one huge channel at the first position and few directions. Super "
        "neurons are the MLP neurons that write it.",
        "sinks.md",
        "A trained model: SmolLM2-135M-Instruct (Q4_1)",
    ),
    "intervene": Explained(
        "An intervention puts other numbers in place of activations and leaves the weights alone, so that what changes "
        "hangs on what was cut. Silencing a neuron that merely goes along with the sinks leaves them; a control of the "
        "same size tells one from the other. The loss says what the model loses with it.",
        "sinks.md",
        "What the sinks hang on, cut and joined",
    ),
    "reproduce": Explained(
        "Each experiment leaves a record with its settings, seeds, versions and the digest of the code that made it; "
        "the page is drawn from the records and from nothing else. Values that a paper printed stand beside rows of "
        "the paper's own configuration alone. The same command again keeps what is complete and runs the rest.",
        "measurements.md",
        "The demo",
    ),
    "plan": Explained(
        "Memory is the sum of what is held at the fullest moment, counted from the configuration by the same functions "
        "that refuse a command before it allocates. Time is the number of operations over a rate: measured here on one "
        "or two blocks of the model, by the functions that the command calls, or a data sheet's times an assumed "
        "fraction. Compiling, reading from disk and traffic between devices come on top.",
        "cluster.md",
        "What a command will need",
    ),
    "status": Explained(
        "A ledger keeps long work in chunks, each one seed on one range of inputs, written whole or not at all. "
        "Several calls may work on one ledger, and each takes what is not done yet. Chunks that other code made are "
        "not mixed with those of now.",
        "architecture.md",
        "Where results are kept",
    ),
    "doctor": Explained(
        "Nothing is changed and nothing is fetched. Extras are optional: each is needed for what stands beside it and "
        "for nothing else. The cache holds what can be made again, tokenizers and tokenised text; deleting it costs "
        "time alone.",
        "architecture.md",
        "Where results are kept",
    ),
}
