"""PyG's data over a store: sharing, tensors, feature and graph stores."""
