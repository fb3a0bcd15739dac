"""Trained tables in checkpoints of torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.group.naming import collective
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.embedding.sparse_optimizer import SparseOptimizer
from peergraph.without_memory import make_without_memory

# torch.distributed.checkpoint takes long to import; its users have imported it already.
if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem


class RowRange(Tensor):
    """The rows of a table in the users' order, as a tensor for torch.distributed.checkpoint.

    It has the methods of a DTensor by which torch.distributed.checkpoint saves and loads this
    rank's range of rows. It has no memory, and no other function of torch accepts it.
    """

    @staticmethod
    def __new__(cls, table: Table, saved: tuple[int, int], loaded: tuple[int, int]) -> RowRange:
        """Makes a tensor of the table's shape and dtype."""
        return make_without_memory(cls, table.shape, dtype=table.dtype, device=torch.device("cpu"))

    def __init__(self, table: Table, saved: tuple[int, int], loaded: tuple[int, int]) -> None:
        """
        Args:
            table: the table.
            saved: the rows that this rank writes. The ranks together write all rows.
            loaded: the rows that this rank reads. The ranks of a machine together read all rows.
        """
        super().__init__()
        self._table = table
        self._saved = saved
        self._loaded = loaded
        self._rows: Tensor | None = None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raises NotImplementedError: no operation of torch reads the rows."""
        raise NotImplementedError(
            f"{func} of rows in a checkpoint: save them by torch.distributed.checkpoint.save, "
            "whose async_save copies tensors and is not supported"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RowRange({tuple(self.shape)}, saved={self._saved}, loaded={self._loaded})"

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        chunk = self._chunk(self._saved)
        empty = torch.empty(0, dtype=self._table.dtype, device="cpu")
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(empty), self.shape)
        index = MetadataIndex(fqn, chunk.offsets)
        return [WriteItem(index, WriteItemType.SHARD, tensor_data=data)] if chunk.sizes[0] else []

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        # Called before rows are loaded. They are loaded into memory that `store` then writes to the
        # table.
        chunk = self._chunk(self._loaded)
        self._rows = torch.empty(chunk.sizes, dtype=self._table.dtype, device="cpu")
        return [chunk]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self._table.read(*self._saved) if self._rows is None else self._rows

    def store(self) -> None:
        """Writes the loaded rows to the table. Call a barrier afterwards."""
        if self._rows is None:
            raise ValueError("torch.distributed.checkpoint has loaded no rows of this table")
        self._table.load(self._rows, self._loaded[0])
        self._rows = None

    def _chunk(self, rows: tuple[int, int]) -> ChunkStorageMetadata:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        begin, end = rows
        width = self._table.shape[1]
        return ChunkStorageMetadata(torch.Size((begin, 0)), torch.Size((end - begin, width)))


class EmbeddingState:
    """Embeddings, and an optimizer's state of them, as a ``Stateful`` of
    torch.distributed.checkpoint::

        state = {"model": model.state_dict(), "tables": peergraph.EmbeddingState(optimizer)}
        dcp.save(state, checkpoint_id=folder)       # all ranks
        dcp.load(state, checkpoint_id=folder)

    A checkpoint has the rows in the users' order, so it can be loaded by any number of ranks and
    machines, with any placement. Each rank saves an equal range of rows, so that each row is saved
    once, and loads a range of rows. No rank keeps more than its range in memory.
    """

    def __init__(self, *trained: Embedding | SparseOptimizer) -> None:
        """
        Args:
            trained: embeddings, or optimizers with their embeddings and state. Save and load a
                checkpoint with the same arguments in the same order.

        Raises:
            TypeError: an argument is neither an embedding nor an optimizer.
            ValueError: there are no arguments, or they are on different groups of ranks.
        """
        for each in trained:
            if not isinstance(each, Embedding | SparseOptimizer):
                raise TypeError(
                    "expected embeddings or optimizers of peergraph.optim, got "
                    f"{type(each).__name__}"
                )
        if not trained:
            raise ValueError("expected at least one embedding or optimizer, got none")
        self._trained = trained
        self.group: Group = next(self._embeddings())[1].trained.group

    def state_dict(self) -> dict[str, Any]:
        """Returns rows, optimizer state, numbers of steps, and options of the optimizers such as
        the learning rate. One-sided.
        """
        state: dict[str, Any] = {}
        for name, embedding in self._embeddings():
            for part, table in embedding.tables().items():
                state[f"{name}.{part}"] = self._range(table)
            if embedding.row_state is not None:
                state[f"{name}.step"] = torch.tensor(embedding.row_state.step)
        for number, optimizer in enumerate(self._optimizers()):
            for at, group in enumerate(optimizer.param_groups):
                options = {key: value for key, value in group.items() if key != "params"}
                state[f"optimizer{number}.group{at}"] = options
        return state

    @collective("EmbeddingState.load_state_dict")
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets rows, state and options to those that torch.distributed.checkpoint has read.
        Collective.

        Raises:
            KeyError: the checkpoint contains other tables or optimizers.
        """
        for name, embedding in self._embeddings():
            for part in embedding.tables():
                state_dict[f"{name}.{part}"].store()
            if embedding.row_state is not None:
                embedding.row_state.step = int(state_dict[f"{name}.step"])
        for number, optimizer in enumerate(self._optimizers()):
            for at, group in enumerate(optimizer.param_groups):
                group.update(state_dict[f"optimizer{number}.group{at}"])
        self.group.barrier()

    def _embeddings(self) -> Iterator[tuple[str, Embedding]]:
        for number, each in enumerate(self._trained):
            embeddings = [each] if isinstance(each, Embedding) else each.embeddings
            for at, embedding in enumerate(embeddings):
                yield f"table{number}.{at}", embedding

    def _optimizers(self) -> Sequence[SparseOptimizer]:
        return [each for each in self._trained if isinstance(each, SparseOptimizer)]

    def _range(self, table: Table) -> RowRange:
        machines = self.group.machines

        def bounds(rank: int, count: int) -> tuple[int, int]:
            return table.rows * rank // count, table.rows * (rank + 1) // count

        return RowRange(
            table,
            bounds(machines.rank, machines.world_size),
            bounds(self.group.rank, self.group.world_size),
        )
