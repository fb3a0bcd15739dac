"""What of PyG's data lies in a store: sharing, tensors over it, feature and graph stores."""
