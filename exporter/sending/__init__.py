"""Sends to the coordinator: batches of records, stored on disk until every coordinator has committed them."""
