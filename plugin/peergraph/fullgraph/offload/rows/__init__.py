"""Where a rank's rows are: on the device, in host memory, in files, or where the user has them."""
