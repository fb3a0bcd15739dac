"""Random situations of loaders, layers and captured steps, compared with plain PyG."""
