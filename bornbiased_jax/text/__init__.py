"""Text: documents from wherever they lie, built-in corpora, and tokenizers."""

from bornbiased_jax.text.bpe import train_bpe
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.text.corpora import Corpus, corpus
from bornbiased_jax.text.documents import list_files, read_documents, read_file, read_text, source_digest, text_digest
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import default_tokenizer, encode_documents, load_tokenizer, tokenizer_for

__all__ = [
    "ByteTokenizer",
    "Corpus",
    "Tokenizer",
    "corpus",
    "default_tokenizer",
    "encode_documents",
    "list_files",
    "load_tokenizer",
    "read_documents",
    "read_file",
    "read_text",
    "source_digest",
    "text_digest",
    "tokenizer_for",
    "train_bpe",
]
