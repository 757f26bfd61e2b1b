"""The audit of a suite on the hub, ``hf:OWNER/NAME*[@REVISION*]``: listings first, weights where they are asked for.

A listing tells digests of files, so copies and gaps among hundreds of revisions are found without fetching any weights.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

from bornbiased_jax import hub, progress, schema
from bornbiased_jax.checkpoints.formats.huggingface import weight_files
from bornbiased_jax.checkpoints.hub import HubName, check_room, fetch, find_cached, has_safetensors, library
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.audit import audit_items
from bornbiased_jax.lineage.audit.finding import AuditResult, Finding
from bornbiased_jax.lineage.audit.folder import Item
from bornbiased_jax.lineage.audit.labels import natural, read_label
from bornbiased_jax.lineage.audit.listing import audit_digests, is_weights

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

_FORM = re.compile(r"hf:(?P<owner>[A-Za-z0-9._-]+)/(?P<name>[^\s@/]+)(?:@(?P<revision>\S+))?")
_WILD = re.compile(r"[*?\[]")
NO_SAFETENSORS = "has no weights in safetensors: its listing alone was looked at"


class Suite(NamedTuple):
    """Revisions of one or several repositories by name: the commit of each, and the files that the hub lists of it."""

    names: dict[str, HubName]
    files: dict[str, list[RepoFile]]


def audit_suite(
    text: str,
    pattern: re.Pattern[str] | None = None,
    *,
    weights: bool = False,
    all_pairs: bool = False,
    frozen: re.Pattern[str] | None = None,
) -> AuditResult:
    """Audit a suite of the hub.

    Args:
        text: ``hf:OWNER/NAME[@REVISION]`` with ``*``, ``?`` and ``[…]`` in the name and in the revision; without a
            revision all branches and tags.
        pattern: of names ("NAME@REVISION"), with a group ``step`` and perhaps ``run``.
        weights: also fetch what has safetensors, and audit it as a folder is audited.
        all_pairs: as of :func:`.audit.audit_folder`.
        frozen: as of :func:`.audit.audit_folder`.

    Returns:
        As :func:`.listing.audit_listing`, or with ``weights`` as :func:`.audit.audit_folder` and ``listing``, the
        findings of the listings.

    Raises:
        InputError: nothing is called that, the hub cannot be reached or breaks off (a second call resumes with what is
            missing), the disk has no room, or ``huggingface_hub`` is not installed.
    """
    suite = find_suite(text)
    # Large files have the digest of their content, others that of a git blob.
    digests = {
        name: {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files if is_weights(file.path)}
        for name, files in suite.files.items()
    }
    listing = audit_digests(digests, text, pattern)
    if not weights:
        return listing
    # What is to be fetched, and its size.
    opened = {
        name: remote for name, remote in suite.names.items() if has_safetensors(file.path for file in suite.files[name])
    }
    missing = [name for name, remote in opened.items() if find_cached(remote) is None]
    files = [file for name in missing for file in suite.files[name] if "/" not in file.path]
    # Mistral's files beside transformers' hold the same weights, and are not fetched.
    size = sum(
        file.size for file in files if file.path.endswith(".safetensors") and not file.path.startswith("consolidated")
    )
    progress.note(
        f"{text}: revisions: {len(suite.names)}; findings in the listings: {len(listing['findings'])}; "
        f"{size / 1e9:.2f} GB to fetch for {len(missing)}"
    )
    check_room(text, size)
    items = []
    with progress.bar(len(opened), "fetching", "checkpoints", timed=False) as advance:
        for name, remote in opened.items():
            folder = fetch(remote)
            items.append(Item(name, read_label(name, pattern), str(remote), tuple(weight_files(folder))))
            advance()
    # What has no safetensors stays a finding.
    unopened = [
        Finding("unreadable", (name,), f"{name} {NO_SAFETENSORS}.") for name in suite.names if name not in opened
    ]
    result = audit_items(items, unopened, text, all_pairs=all_pairs, frozen=frozen)
    result["listing"] = listing["findings"]
    return result


def find_suite(text: str) -> Suite:
    """Ask the hub which repositories and revisions are called that, and for the listing of each.

    Raises:
        InputError: as :func:`audit_suite`.
    """
    # Parse owner, names and revisions.
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(f"{schema.shown(text)} is not of the form hf:OWNER/NAME*@REVISION*")
    owner, name_pattern, revisions = match["owner"], match["name"], match["revision"] or "*"
    client = library(text).HfApi()
    names: dict[str, HubName] = {}
    files: dict[str, list[RepoFile]] = {}
    with hub.asking(text):
        # Repositories, then their branches and tags.
        repositories = [f"{owner}/{name_pattern}"]
        if _WILD.search(name_pattern):
            begin = _WILD.split(name_pattern)[0]
            identifiers = {row.id for row in client.list_models(author=owner, search=begin or None)}
            repositories = sorted(name for name in identifiers if fnmatch.fnmatchcase(name, f"{owner}/{name_pattern}"))
        for repository in repositories:
            refs = client.list_repo_refs(repository)
            # By commit from here on: a branch may move while its files are listed, or have moved since it was cached.
            commits = {row.name: row.target_commit for row in (*refs.tags, *refs.branches)}
            for revision in sorted(commits, key=natural):
                if fnmatch.fnmatchcase(revision, revisions):
                    names[f"{repository.partition('/')[2]}@{revision}"] = HubName(repository, commits[revision])
        if not names:
            raise InputError(f"the hub has nothing called {text}: check the name, or write * for the revision")
        # The files of each revision.
        with progress.bar(len(names), "listing", "revisions") as advance:
            for name, remote in names.items():
                rows = client.list_repo_tree(remote.repository, revision=remote.revision, recursive=True)
                files[name] = [row for row in rows if hasattr(row, "blob_id")]
                advance()
    return Suite(names, files)
