"""The JSON API, one file for each thing that can be asked; `app.py` joins them."""
