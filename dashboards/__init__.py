"""Grafana dashboards as Python; `catalogue.render` is what `make generate` calls."""
