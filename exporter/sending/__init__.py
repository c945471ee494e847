"""What goes to the coordinator: batches, kept on disk until the broker has them."""
