"""One weight as it lies in its file: memory-mapped rows of bytes, in a known number format.

In: mapped bytes and a format. Out: rows for a kernel that packs them as they are, or float32 for
the reference. Knows nothing of models, families or of how a file is laid out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WeightType(NamedTuple):
    """A number format: `block_values` values of a row share `block_bytes` bytes.

    `gguf_id` is the format's number in GGUF files. Sizes as in ggml's block structs.
    """

    name: str
    gguf_id: int
    block_values: int
    block_bytes: int

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` values; `cols` must be a multiple of `block_values`."""
        return cols // self.block_values * self.block_bytes


WEIGHT_TYPES: dict[str, WeightType] = {
    t.name: t
    for t in (
        WeightType("F32", 0, 1, 4),
        WeightType("F16", 1, 1, 2),
        WeightType("BF16", 30, 1, 2),
        WeightType("F64", 28, 1, 8),
        WeightType("Q4_0", 2, 32, 18),
        WeightType("Q4_1", 3, 32, 20),
        WeightType("Q5_0", 6, 32, 22),
        WeightType("Q5_1", 7, 32, 24),
        WeightType("Q8_0", 8, 32, 34),
        WeightType("Q2_K", 10, 256, 84),
        WeightType("Q3_K", 11, 256, 110),
        WeightType("Q4_K", 12, 256, 144),
        WeightType("Q5_K", 13, 256, 176),
        WeightType("Q6_K", 14, 256, 210),
        WeightType("IQ1_S", 19, 256, 50),
        WeightType("IQ1_M", 29, 256, 56),
        WeightType("IQ2_XXS", 16, 256, 66),
        WeightType("IQ2_XS", 17, 256, 74),
        WeightType("IQ2_S", 22, 256, 82),
        WeightType("IQ3_XXS", 18, 256, 98),
        WeightType("IQ3_S", 21, 256, 110),
        WeightType("IQ4_NL", 20, 32, 18),
        WeightType("IQ4_XS", 23, 256, 136),
        WeightType("TQ1_0", 34, 256, 54),
        WeightType("TQ2_0", 35, 256, 66),
        WeightType("MXFP4", 39, 32, 17),
        WeightType("NVFP4", 40, 64, 36),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class WeightTensor:
    """A weight matrix, or a vector as one row.

    Attributes:
        name: the canonical name, such as "layers.0.q".
        shape: (rows, cols) of a matrix, (cols,) of a vector, in values.
        type: how a row's values are stored.
        stored_rows: [rows, row bytes] uint8, read-only, mapped from the file, in file order.
        row_order: [rows] int64, row i of the weight is `stored_rows[row_order[i]]`; None where
            both orders agree.
        added: what is added to every value: Gemma stores a norm's weights less one.
    """

    name: str
    shape: tuple[int, ...]
    type: WeightType
    stored_rows: NDArray[np.uint8]
    row_order: NDArray[np.int64] | None = None
    added: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.stored_rows.nbytes

    def rows(self) -> NDArray[np.uint8]:
        """The stored bytes in the weight's own row order, [rows, row bytes].

        The mapping itself where no row moves, else a copy.
        """
        return self.stored_rows if self.row_order is None else self.stored_rows[self.row_order]

    def float32(self) -> NDArray[np.float32]:
        """The values, of shape `shape`; a read-only view of the file for plain F32, else a copy.

        Raises:
            ModelError: a format that the installed gguf package does not know yet.
        """
        rows = self.rows()
        if self.type.name == "F32":
            values = rows.view(np.float32)
        elif self.type.name == "F16":
            values = rows.view(np.float16).astype(np.float32)
        elif self.type.name == "BF16":
            values = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif self.type.name == "F64":
            values = rows.view(np.float64).astype(np.float32)
        else:
            values = _dequantize(rows, self.type)
        if self.added:
            values = values + np.float32(self.added)
        return values.reshape(self.shape)


def _dequantize(rows: NDArray[np.uint8], kind: WeightType) -> NDArray[np.float32]:
    # imported here: a runner that packs the stored bytes never pays for the import
    import gguf  # noqa: PLC0415

    # a few thousand rows at a time keep the library's temporaries in the cache
    out = np.empty((len(rows), rows.shape[1] // kind.block_bytes * kind.block_values), np.float32)
    try:
        quantization = gguf.GGMLQuantizationType(kind.gguf_id)
    except ValueError:
        raise _not_expandable(kind) from None
    # a damaged scale becomes NaN without a word here: a runner reports it with the request's name
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(rows), 4096):
            some = rows[first : first + 4096]
            try:
                out[first : first + 4096] = gguf.dequantize(some, quantization)
            except NotImplementedError:
                raise _not_expandable(kind) from None
    return out


def _not_expandable(kind: WeightType) -> ModelError:
    return ModelError(
        f"the installed gguf package cannot expand weights of type {kind.name}",
        hint="install a newer one: python -m pip install --upgrade gguf",
    )
