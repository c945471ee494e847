"""The Run dashboard, one file per question that it answers; `board.py` combines them."""
