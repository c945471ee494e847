"""The Run dashboard, a file for each question that it answers; `board.py` puts them one below the other."""
