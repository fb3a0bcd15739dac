"""What users call, with its checks and its gradients."""
