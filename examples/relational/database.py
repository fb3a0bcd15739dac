"""A database of ten tables, its graph, and what is to be predicted."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_frame import stype
from torch_frame.config.text_tokenizer import TextTokenizerConfig
from torch_frame.data import Dataset
from torch_geometric.data import HeteroData

DAY = 24 * 60 * 60
YEAR = 365 * DAY
WORDS = 1000


def make_database(rows: int) -> dict[str, pd.DataFrame]:
    """Ten tables with `rows` rows together. Customers have a favourite category, and some leave."""
    random = np.random.default_rng(0)
    shares = {"visits": 0.4, "order_items": 0.25, "orders": 0.13, "reviews": 0.12, "returns": 0.04}
    shares.update(customers=0.05, products=0.008, brands=0.001, stores=0.0008, categories=0.0002)
    n = {name: max(5, int(share * rows)) for name, share in shares.items()}

    def key(table: str, count: int) -> np.ndarray:
        return (n[table] * random.random(count) ** 1.5).astype(np.int64)  # some are more popular

    def texts(topic: np.ndarray) -> list[str]:
        words = (topic[:, None] * 7 + random.integers(0, 12, (len(topic), 6))) % WORDS
        return [" ".join(f"word{w}" for w in row) for row in words]

    category_of = random.integers(0, n["categories"], n["products"])
    favourite = random.integers(0, n["categories"], n["customers"])
    leaves = random.integers(0, 2 * YEAR, n["customers"])

    def product_for(customer: np.ndarray) -> np.ndarray:
        """Three in four are of the customer's favourite category."""
        by_category = np.argsort(category_of, kind="stable")
        begin = np.searchsorted(category_of[by_category], favourite[customer])
        end = np.searchsorted(category_of[by_category], favourite[customer], side="right")
        liked = by_category[np.minimum(begin + random.integers(0, 1 << 30, len(customer)) %
                                       np.maximum(end - begin, 1), n["products"] - 1)]  # fmt: skip
        return np.where(random.random(len(customer)) < 0.75, liked, key("products", len(customer)))

    def event(table: str) -> tuple[np.ndarray, np.ndarray]:
        """Customers, and times before they leave."""
        customer = key("customers", n[table])
        time = (random.random(n[table]) * leaves[customer]).astype(np.int64)
        return customer, time

    visitor, visit_time = event("visits")
    buyer, order_time = event("orders")
    reviewer, review_time = event("reviews")
    order = np.sort(random.integers(0, n["orders"], n["order_items"]))
    returned = random.integers(0, n["order_items"], n["returns"])
    normal = random.standard_normal
    tables = {
        "categories": {"name": texts(np.arange(n["categories"]))},
        "brands": {"country": random.integers(0, 20, n["brands"]), "size": normal(n["brands"])},
        "stores": {"area": normal(n["stores"]), "country": random.integers(0, 20, n["stores"])},
        "products": {
            "category": category_of,
            "brand": key("brands", n["products"]),
            "price": np.exp(normal(n["products"])),
            "title": texts(category_of),
        },
        "customers": {
            "age": np.where(random.random(len(leaves)) < 0.1, np.nan, normal(len(leaves))),
            "country": random.integers(0, 20, n["customers"]),
            "time": (leaves * random.random(n["customers"]) * 0.2).astype(np.int64),
        },
        "orders": {"customer": buyer, "store": key("stores", n["orders"]), "time": order_time},
        "order_items": {
            "order": order,
            "product": product_for(buyer[order]),
            "amount": random.integers(1, 9, len(order)).astype(float),
            "time": order_time[order],
        },
        "reviews": {
            "customer": reviewer,
            "product": product_for(reviewer),
            "stars": random.integers(1, 6, n["reviews"]),
            "text": texts(favourite[reviewer]),
            "time": review_time,
        },
        "returns": {
            "order_item": returned,
            "reason": random.integers(0, 6, n["returns"]),
            "time": order_time[order[returned]] + random.integers(0, 20 * DAY, n["returns"]),
        },
        "visits": {
            "customer": visitor,
            "product": product_for(visitor),
            "seconds": random.exponential(60, n["visits"]),
            "time": visit_time,
        },
    }  # fmt: skip
    return {name: pd.DataFrame(columns) for name, columns in tables.items()}


FOREIGN_KEYS = {
    **{"category": "categories", "brand": "brands", "store": "stores", "product": "products"},
    **{"customer": "customers", "order": "orders", "order_item": "order_items"},
}
STYPES = {
    **dict.fromkeys(("size", "area", "price", "age", "amount", "seconds", "day"), stype.numerical),
    **dict.fromkeys(("country", "stars", "reason"), stype.categorical),
    **dict.fromkeys(("name", "title", "text"), stype.text_tokenized),
}


def tokenize(texts: list[str]) -> list[dict[str, Tensor]]:
    return [{"input_ids": torch.tensor([int(word[4:]) for word in text.split()])} for text in texts]


def make_graph(tables: dict[str, pd.DataFrame]) -> HeteroData:
    """Rows are nodes with a frame of their columns; each foreign key gives edges both ways."""
    data = HeteroData()
    for name, table in tables.items():
        columns = table.assign(day=table.get("time", pd.Series(np.zeros(len(table)))) / DAY)
        types = {column: STYPES[column] for column in columns if column in STYPES}
        tokenizer = {
            c: TextTokenizerConfig(tokenize) for c in types if types[c] is stype.text_tokenized
        }
        dataset = Dataset(columns[list(types)], types, col_to_text_tokenizer_cfg=tokenizer)
        data[name].tf = dataset.materialize().tensor_frame
        data[name].tf.col_stats = dataset.col_stats
        data[name].num_nodes = len(table)
        if "time" in table:
            data[name].time = torch.from_numpy(table["time"].to_numpy())
        for column in table.columns.intersection(list(FOREIGN_KEYS)):
            keys = torch.from_numpy(table[column].to_numpy())
            edge_index = torch.stack([torch.arange(len(table)), keys])
            other = FOREIGN_KEYS[column]
            data[name, f"f2p_{column}", other].edge_index = edge_index
            data[other, f"rev_f2p_{column}", name].edge_index = edge_index.flip(0)
    return data


# Customers who have ordered in the 60 days before, and whether they do in the 30 days after.
_ACTIVE = """
    SELECT o.customer, cut, max(CASE WHEN o.time > cut THEN 1 ELSE 0 END)::BIGINT AS label
    FROM orders o JOIN cuts ON o.time > ago AND o.time <= later
    GROUP BY ALL HAVING min(o.time) <= cut ORDER BY ALL
"""
_BOUGHT = """
    SELECT DISTINCT o.customer, i.product, cut
    FROM orders o JOIN cuts ON o.time > cut AND o.time <= later
    JOIN order_items i ON i."order" = o.row ORDER BY ALL
"""


def make_tasks(tables: dict[str, pd.DataFrame]) -> dict[str, tuple[Tensor, ...]]:
    """Customers with a time and a label, and pairs of a customer and a product with a time."""
    last = int(tables["orders"]["time"].max())
    tasks = {}
    for split, first, until in (("train", 0.3, 0.7), ("test", 0.75, 0.85)):
        steps = np.arange(first * last, until * last, 30 * DAY).astype(np.int64)
        cuts = pd.DataFrame({"cut": steps, "ago": steps - 60 * DAY, "later": steps + 30 * DAY})
        queries = {"active": _ACTIVE, "bought": _BOUGHT}
        with duckdb.connect() as connection:
            for name, table in {**tables, "cuts": cuts}.items():
                connection.register(name, table.reset_index(names="row"))
            for task, query in queries.items():
                columns = connection.sql(query).fetchnumpy().values()
                tasks[f"{task} {split}"] = tuple(torch.from_numpy(c.copy()) for c in columns)
    return tasks
