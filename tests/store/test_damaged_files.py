"""A saved store that is not as it was saved is refused, with the file named and what is wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.memory import Group
from peergraph.store import GraphSource, Store
from peergraph.store.disk import manifest as manifest_module
from peergraph.store.disk.saved_store import SavedStore
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.store.saved_stores import change_manifest, flip_byte, save_small_store

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "graph"
    save_small_store(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of its own."""
    return Path(shutil.copytree(saved, tmp_path / "graph"))


def refused(folder: Path, match: str, verify: bool = False) -> None:
    """Without checksums by default: each check holds alone."""
    with pytest.raises(ValueError, match=match):
        Store.load(folder, device="cpu", verify=verify)


def test_every_flipped_byte_is_found(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        content = path.read_bytes()
        for offset in {0, 9, 60, size // 2, size - 1}:
            flip_byte(path, offset)
            refused(folder, path.name.replace(".", r"\."), verify=True)
            path.write_bytes(content)
    Store.load(folder, device="cpu").close()


def test_flipped_bytes_of_large_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks so small that a file has several, and rows that begin in one and end in
    another.
    """
    from peergraph.store.disk import saved_array, shared_file

    for module in (manifest_module, saved_array, shared_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", 200)
    folder = tmp_path / "graph"
    save_small_store(folder)
    entry = json.loads((folder / "manifest.json").read_text())["nodes"][1]["tables"][0]
    assert len(entry["crc32c"]) == 4
    Store.load(folder, device="cpu").close()
    for offset in range(3, (folder / entry["file"]).stat().st_size, 97):
        flip_byte(folder / entry["file"], offset)
        refused(folder, f"{entry['file']} ", verify=True)
        flip_byte(folder / entry["file"], offset)


def test_a_changed_manifest_is_found(folder: Path) -> None:
    change_manifest(folder, lambda m: m["nodes"][0]["tables"][0].update(name="z"))
    refused(folder, r"manifest\.json has been changed since it was saved", verify=True)
    with Store.load(folder, device="cpu", verify=False) as store:
        assert store.node_table_names("user") == ["z"]


def edge(key: str, value: Any) -> Change:
    return lambda m: m["edges"][0].update({key: value})


def table(key: str, value: Any) -> Change:
    return lambda m: m["nodes"][0]["tables"][0].update({key: value})


def embedding(key: str, value: Any) -> Change:
    return lambda m: m["embeddings"][0].update({key: value})


MALFORMED = [
    (lambda m: m.update(format=1), "format 1, this version reads 2"),
    (lambda m: m.update(format=True), "format True"),
    (lambda m: m.pop("format"), r"manifest\.json: .* has no key 'format'"),
    (lambda m: m.pop("nodes"), "has no key 'nodes'"),
    (lambda m: m.pop("crc32c"), "has no key 'crc32c'"),
    (lambda m: m.update(more=1), "unknown key 'more'"),
    (lambda m: m.update(nodes={}), "nodes must be a list"),
    (lambda m: m.update(nodes=[3]), r"nodes\[0\] must be an object, got 3"),
    (lambda m: m["nodes"].append(m["nodes"][0]), "the type 'user' occurs twice"),
    (lambda m: m["edges"].append(m["edges"][0]), "occurs twice"),
    (lambda m: m["embeddings"].append(m["embeddings"][0]), "occurs twice"),
    (lambda m: m["nodes"][0].update(type=3), r"nodes\[0\].type must be a string, got 3"),
    (lambda m: m["nodes"][0].update(count=19), r"shape must be of 19 rows, got \[20, 4\]"),
    (lambda m: m["nodes"][0].update(count=-1), "count must be an integer from 0"),
    (lambda m: m["nodes"][0].update(count=True), "count must be an integer.*got True"),
    (lambda m: m["nodes"][0].update(count=20.0), "count must be an integer.*got 20.0"),
    (lambda m: m["nodes"][0].update(count=2**63), "count must be an integer"),
    (lambda m: m["nodes"][0].pop("tables"), r"nodes\[0\] has no key 'tables'"),
    (lambda m: m["nodes"][0]["tables"].append(m["nodes"][0]["tables"][0]), "occurs twice"),
    (table("dtype", "load"), r"nodes\[0\].tables\[0\].dtype must be one of .*got 'load'"),
    (table("dtype", "float8_x"), "dtype must be one of"),
    (table("dtype", "int32"), "must be '<i4' of shape .*is '<f4' of shape"),
    (table("shape", [20, 5]), r"of shape \[20, 5\], as the manifest says, is .*\[20, 4\]"),
    (table("shape", 20), "shape must be a list of integers"),
    (table("shape", []), "shape must be of 20 rows"),
    (table("shape", [20, 2**62, 8]), "must be .* as the manifest says"),
    (table("crc32c", []), "must have 1 checksums, has 0"),
    (table("crc32c", ["a"]), "crc32c must be a list of integers"),
    (table("file", "node1.table0.npy"), "the file 'node1.table0.npy' occurs twice"),
    (table("file", "../graph/node0.table0.npy"), "file must be the plain name"),
    (table("file", "sub/x.npy"), "file must be the plain name"),
    (table("file", "/etc/passwd"), "file must be the plain name"),
    (table("file", ".."), "file must be the plain name"),
    (table("file", "x\0.npy"), "file must be the plain name"),
    (table("file", "manifest.json"), "file must be the plain name"),
    (edge("edge_ids", False), "edge_ids must be an object, got False"),
    (edge("edge_ids", True), "edge_ids must be an object, got True"),
    (edge("type", ["user", "buys"]), "type must be a node type, a relation"),
    (edge("type", ["user", "buys", "nobody"]), "type must be a node type"),
    (edge("type", "abc"), "type must be a list of strings"),
    (edge("type", ["user", 3, "item"]), "type must be a list of strings"),
    (edge("count", 99), r"shape must be of 99 rows, got \[100\]"),
    (edge("indptr", None), "indptr must be an object, got null"),
    (embedding("type", "nobody"), "type must be one of user, item"),
    (embedding("plan", "best"), "plan must be one of auto, .*got 'best'"),
    (embedding("in_state_dict", 1), "in_state_dict must be true or false, got 1"),
    (embedding("optimizer", 1), "optimizer must be a string, got 1"),
    (embedding("optimizer", "SparseSGD"), r"must be \(\) for SparseSGD"),
    (embedding("optimizer", None), "state of embedding 'embedding' of 'user' must be"),
    (embedding("step", -1), "step must be an integer"),
    (embedding("weight", None), "weight must be an object, got null"),
    (lambda m: m["embeddings"][0]["weight"].update(dtype="int64"), "dtype must be one of"),
    (lambda m: m["embeddings"][0]["state"][0].update(shape=[20, 4]), r"must be \[20, 3\]"),
]


def test_malformed_manifests(folder: Path) -> None:
    manifest = folder / "manifest.json"
    intact = manifest.read_bytes()
    for index, (change, match) in enumerate(MALFORMED):
        manifest.write_bytes(intact)
        with named_case(f"MALFORMED[{index}]", match):
            change_manifest(folder, change)
            refused(folder, match)
            refused(folder, "manifest", verify=True) if "manifest" in match else None


NO_MANIFESTS = [
    (b"", "is not valid JSON"),
    (b"[]", "must be an object"),
    (b"\xff\xfe", "is not valid JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"format": 2, "format": 2}', "the key 'format' occurs twice"),
]


def test_manifests_that_are_none(folder: Path) -> None:
    for text, match in NO_MANIFESTS:
        with named_case(match):
            (folder / "manifest.json").write_bytes(text)
            refused(folder, f"manifest.json.*{match}")


def test_a_huge_manifest_is_not_read(folder: Path) -> None:
    with open(folder / "manifest.json", "ab") as file:
        file.truncate(1 << 40)
    refused(folder, "manifest.json must have at most")


def test_links_fifos_and_folders_are_not_read(folder: Path, tmp_path: Path) -> None:
    path = folder / "node0.table0.npy"
    outside = tmp_path / "outside.npy"
    path.rename(outside)
    path.symlink_to(outside)
    refused(folder, r"node0\.table0\.npy must be a regular file, got a symbolic link")
    path.unlink()
    os.mkfifo(path)
    refused(folder, "must be a regular file")
    path.unlink()
    path.mkdir()
    refused(folder, "must be a regular file")
    path.rmdir()
    with pytest.raises(FileNotFoundError, match=r"incomplete store: .*node0\.table0\.npy"):
        Store.load(folder, device="cpu")
    outside.rename(path)
    manifest = folder / "manifest.json"
    manifest.rename(tmp_path / "other.json")
    manifest.symlink_to(tmp_path / "other.json")
    refused(folder, r"manifest\.json must be a regular file, got a symbolic link")


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    Store.load(tmp_path / "link", device="cpu").close()


OTHER_ARRAYS = [
    (np.zeros((21, 4), np.float32), r"\[21, 4\]"),
    (np.zeros((19, 4), np.float32), r"\[19, 4\]"),
    (np.zeros((20, 4), np.float64), "is '<f8'"),
    (np.zeros((20, 4), ">f4"), "is '>f4'"),
    (np.asfortranarray(np.zeros((20, 4), np.float32)), "Fortran order"),
    (np.zeros((20, 4), object), r"is '\|O'"),
]


def test_other_arrays(folder: Path) -> None:
    for array, match in OTHER_ARRAYS:
        with named_case(match):
            np.save(folder / "node0.table0.npy", array, allow_pickle=True)
            refused(folder, rf"node0\.table0\.npy must be '<f4' of shape \[20, 4\].*{match}")


def test_lengths_and_headers(folder: Path) -> None:
    path = folder / "node0.table0.npy"
    content = path.read_bytes()
    for changed, match in (
        (content[:-1], "must have 448 bytes, has 447"),
        (content + b"x", "must have 448 bytes, has 449"),
        (content[:100], r"no valid \.npy header"),
        (b"", r"no valid \.npy header"),
        (content[:6] + b"\x02" + content[7:], "format version 2.0, expected 1.0"),
        (b"PK" + content[2:], r"no valid \.npy header"),
    ):
        path.write_bytes(changed)
        refused(folder, f"node0.table0.npy.*{match}")


BAD_STRUCTURE = [
    ("indptr", 0, 1, "entry 0 must be 0, is 1"),
    ("indptr", -1, 99, "entry 30 must be 100, is 99"),
    ("indptr", 5, 101, "must not fall, entry 5 is 101"),
    ("indptr", 5, -1, "must not fall"),
    ("indices", 7, 20, "entry 7 must be from 0 to 19, is 20"),
    ("indices", 7, -1, "entry 7 must be from 0 to 19, is -1"),
    ("edge_ids", 3, 100, "entry 3 must be from 0 to 99, is 100"),
]


def test_bad_structure(folder: Path) -> None:
    for file, at, value, match in BAD_STRUCTURE:
        with named_case(file, match):
            path = folder / f"edge0.{file}.npy"
            intact = np.load(path)
            array = intact.copy()
            array[at] = value
            np.save(path, array)
            refused(folder, rf"edge0\.{file}\.npy.*{match}")
            np.save(path, intact)


def test_edge_ids_that_repeat(folder: Path) -> None:
    path = folder / "edge0.edge_ids.npy"
    array = np.load(path)
    array[0] = array[1]
    np.save(path, array)
    refused(folder, "edge_ids")


def after_the_check(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Changes a folder between the check of its files and their reading."""
    source = SavedStore.source

    def changed(self: SavedStore, *args: Any) -> GraphSource:
        change()
        return source(self, *args)

    monkeypatch.setattr(SavedStore, "source", changed)


@pytest.mark.parametrize("spill", [False, True])
def test_files_that_are_cut_while_they_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spill: bool
) -> None:
    """No file is mapped: there is no signal, but an error."""
    options: dict[str, Any] = {"spill": tmp_path} if spill else {}
    paths = [path for path in sorted(folder.glob("*.npy")) if path.stat().st_size > 128]
    for path in paths:
        content, end = path.read_bytes(), path.stat().st_size - 1
        with monkeypatch.context() as patch, named_case(path.name):
            after_the_check(patch, lambda path=path, end=end: os.truncate(path, end))  # type: ignore[misc]
            with pytest.raises(ValueError, match=rf"{path.name} ends at byte {end}"):
                Store.load(folder, device="cpu", **options)
            path.write_bytes(content)
    assert {path.name for path in paths} >= {"edge0.indices.npy", "embedding0.table0.npy"}


def test_a_file_that_is_replaced_while_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without checksums too: another file with the same length may hold anything."""
    path = folder / "edge0.indices.npy"
    shutil.copy(path, folder / "other")
    after_the_check(monkeypatch, lambda: (folder / "other").rename(path))
    refused(folder, r"edge0\.indices\.npy has been replaced since it was checked")


def test_the_structure_does_not_depend_on_its_files_once_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Store.build.__func__  # type: ignore[attr-defined]
    with Store.load(folder, device="cpu") as store:
        edges = {edge_type: store.edge_index(edge_type) for edge_type in store.edge_types}

    def cut(*args: Any, **options: Any) -> Store:
        for path in folder.glob("edge?.i*.npy"):
            os.truncate(path, 10)
        return build(*args, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(Store, "build", classmethod(cut))
    with Store.load(folder, device="cpu") as store:
        for edge_type, expected in edges.items():
            torch.testing.assert_close(store.edge_index(edge_type), expected, rtol=0, atol=0)


def test_bad_arguments(folder: Path) -> None:
    with pytest.raises(TypeError, match="verify must be True or False, got 1"):
        Store.load(folder, device="cpu", verify=1)  # type: ignore[arg-type]


def _load(folder: str) -> list[str]:
    """What each way to damage the folder raises on this rank."""
    group = Group.current(device="cpu")
    raised = []
    for file, offset in (
        ("manifest.json", 40),
        ("node1.table0.npy", -1),
        ("edge0.indices.npy", -1),
        ("embedding0.table1.npy", -1),
    ):
        if group.rank == 0:
            flip_byte(Path(folder) / file, offset)
        group.barrier()
        with pytest.raises(ValueError, match=file.replace(".", r"\.")) as caught:
            Store.load(folder, group=group)
        raised.append(str(caught.value))
        group.barrier()
        if group.rank == 0:
            flip_byte(Path(folder) / file, offset)
        group.barrier()
    Store.load(folder, group=group).close()
    return raised


def test_every_rank_raises_what_one_finds(folder: Path) -> None:
    first, second = run_ranks(_load, 2, str(folder))
    assert first == second


def _load_repeated(folder: str) -> None:
    with pytest.raises(ValueError, match="edge_ids of the ranks must be a permutation together"):
        Store.load(folder, group=Group.current(device="cpu"), verify=False)


def test_edge_ids_that_repeat_on_another_rank(folder: Path) -> None:
    path = folder / "edge0.edge_ids.npy"
    array = np.load(path)
    array[0] = array[-1]
    np.save(path, array)
    run_ranks(_load_repeated, 2, str(folder))


def _load_different(folder: str, other: str) -> None:
    group = Group.current(device="cpu")
    with pytest.raises(ValueError, match="the ranks load different stores"):
        Store.load(folder if group.rank == 0 else other, group=group)


def test_ranks_that_load_different_stores(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    torch.manual_seed(1)
    save_small_store(other)
    run_ranks(_load_different, 2, str(folder), str(other))
