"""The tensor of rows that are not on the device, and the chunk of rows that computes as a rank."""
