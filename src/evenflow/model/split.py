"""A GGUF model in several files, NAME-00001-of-00003.gguf and so on, as one.

In: any one of the parts. Out: the first part's metadata with the tensors of all. Every part says
which it is (`split.no`) and how many there are (`split.count`); the format is gguf-split's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evenflow.errors import ModelError
from evenflow.model.gguf import GgufFile, read_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.model.gguf import StoredTensor

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_gguf_model(path: Path) -> GgufFile:
    """`read_gguf`, with the tensors of the other parts where the file is one of several.

    Raises:
        ModelError: as `read_gguf`; or a part is missing, has another name than its number, or holds
            another number of tensors than all parts say.
    """
    file = read_gguf(path)
    count = file.metadata.get("split.count", 1)
    if count == 1:
        return file
    name = _PART.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        raise ModelError(
            f"{path} is one of {count} parts of a model, but its name does not say so",
            hint=f"name the parts NAME-00001-of-{count:05}.gguf and so on, in one folder",
        )
    paths = [
        path.with_name(f"{name['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)
    ]
    missing = [part for part in paths if not part.is_file()]
    if missing:
        raise ModelError(
            f"{path.name} is one of {count} parts of a model, of which {len(missing)} are missing:"
            f" {', '.join(part.name for part in missing)}",
            hint=f"fetch them into {path.parent}",
        )
    parts = [read_gguf(part) for part in paths]
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        found = part.metadata.get("split.no"), part.metadata.get("split.count")
        if found != (number, count):
            raise ModelError(
                f"{part.path} says that it is part {found[0]} of {found[1]} (counted from 0), but"
                f" its name says part {number} of {count}",
                hint="the parts belong to different models, or were renamed: fetch them again",
            )
        tensors |= part.tensors
    held = sum(len(part.tensors) for part in parts)
    stated = parts[0].metadata.get("split.tensors.count", held)
    if not len(tensors) == held == stated:
        raise ModelError(
            f"the {count} parts of {parts[0].path} hold {held:,} tensors, {len(tensors):,} of them"
            f" different, but should hold {stated:,}",
            hint="the parts belong to different models: fetch them again",
        )
    return GgufFile(parts[0].path, parts[0].metadata, tensors)
